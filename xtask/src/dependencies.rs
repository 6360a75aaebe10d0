//! The dependency policy of `deny.toml`, as far as it can be checked without network: licenses,
//! sources, duplicates, and advisories if this machine has a database of them.
//!
//! The lists are read from `deny.toml`, so that cargo-deny and this command agree. Only the
//! registry lists yanked versions, so these are not checked here.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Package;
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use crate::tree::{self, Problem};

/// The part of `deny.toml` that is checked here.
#[derive(Debug, Deserialize)]
struct Policy {
    licenses: Licenses,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

/// Licenses that one crate may have.
#[derive(Debug, Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

/// Checks the packages in the `Cargo.lock` of a workspace, a directory below `root` or `root`
/// itself, against `deny.toml`.
///
/// # Errors
/// When something breaks the policy, or the lock file does not match the manifests.
pub(crate) fn run(root: &Path, workspace: &str) -> Result<()> {
    let directory = root.join(workspace);
    if !directory.join("Cargo.lock").exists() {
        bail!("Cargo.lock is missing: it is committed, so that everybody builds the same");
    }
    let policy = fs::read_to_string(root.join("deny.toml")).context("cannot read deny.toml")?;
    let metadata = tree::metadata(&directory, &["--locked"])?;
    let packages: Vec<&Package> = metadata
        .packages
        .iter()
        .filter(|package| !package.manifest_path.starts_with(root))
        .collect();
    let policy: Policy = toml::from_str(&policy).context("cannot read deny.toml")?;
    let problems = check(&policy, &packages)?;
    for (name, versions) in duplicates(&packages) {
        println!("note: {name} in {} versions: {}", versions.len(), versions.join(", "));
    }
    println!("{} foreign crates checked against deny.toml", packages.len());
    advisories(&directory)?;
    tree::none_of(&problems)
}

fn check(policy: &Policy, packages: &[&Package]) -> Result<Vec<Problem>> {
    let allowed = licensees(&policy.licenses.allow)?;
    let mut problems = Vec::new();
    for package in packages {
        let place = format!("{} {}", package.name, package.version);
        let exceptions = policy.licenses.exceptions.iter();
        let own = exceptions.filter(|exception| exception.name == package.name.as_str());
        let mut allowed = allowed.clone();
        for exception in own {
            allowed.extend(licensees(&exception.allow)?);
        }
        if let Some(what) = wrong_license(package.license.as_deref(), &allowed) {
            problems.push(Problem::new(&place, what));
        }
        let source = package.source.as_ref().map_or("a path", |source| source.repr.as_str());
        let registry = source.strip_prefix("registry+").unwrap_or_default();
        if !policy.sources.allow_registry.iter().any(|allowed| allowed == registry) {
            problems.push(Problem::new(&place, format!("comes from {source}, not crates.io")));
        }
    }
    Ok(problems)
}

fn licensees(names: &[String]) -> Result<Vec<Licensee>> {
    let parse =
        |name: &String| Licensee::parse(name).with_context(|| format!("deny.toml: license {name}"));
    names.iter().map(parse).collect()
}

/// What is wrong with a license expression, if anything.
fn wrong_license(license: Option<&str>, allowed: &[Licensee]) -> Option<String> {
    let Some(text) = license else { return Some("states no license".to_owned()) };
    // Crates older than the SPDX rule write `MIT/Apache-2.0`, which the lax mode reads as OR.
    match Expression::parse_mode(text, ParseMode::LAX) {
        Err(error) => Some(format!("license `{text}` cannot be read: {}", error.reason)),
        Ok(expression) => {
            let is_allowed = expression
                .evaluate(|needed| allowed.iter().any(|licensee| licensee.satisfies(needed)));
            (!is_allowed).then(|| format!("license `{text}` is not allowed by deny.toml"))
        }
    }
}

fn duplicates(packages: &[&Package]) -> BTreeMap<String, Vec<String>> {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
        versions.entry(package.name.to_string()).or_default().push(package.version.to_string());
    }
    versions.retain(|_, versions| versions.len() > 1);
    versions
}

/// Tools that check advisories: the Cargo command, and the place of the database below
/// `$CARGO_HOME`.
const ADVISORY_TOOLS: [(&[&str], &str); 2] = [
    (&["deny", "--offline", "check", "advisories"], "advisory-dbs"),
    (&["audit", "--no-fetch"], "advisory-db"),
];

/// Checks advisories with the first tool that this machine has together with a database.
fn advisories(root: &Path) -> Result<()> {
    for (arguments, database) in ADVISORY_TOOLS {
        if !cargo_home().join(database).is_dir() || !has_command(arguments[0]) {
            continue;
        }
        let status = cargo().args(arguments).current_dir(root).status()?;
        if !status.success() {
            bail!("`cargo {}` found advisories or failed", arguments.join(" "));
        }
        return Ok(());
    }
    println!("SKIPPED: advisories (no advisory database on this machine)");
    Ok(())
}

fn cargo_home() -> PathBuf {
    let default = || env::home_dir().unwrap_or_default().join(".cargo");
    env::var_os("CARGO_HOME").map_or_else(default, PathBuf::from)
}

/// The Cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Whether Cargo has the command `name`, such as `clippy` or `deny`.
pub(crate) fn has_command(name: &str) -> bool {
    cargo()
        .args([name, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fixture;

    #[track_caller]
    fn check_license(license: Option<&str>, expected: Option<&str>) {
        let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception"]
            .map(|name| Licensee::parse(name).expect("a license"));
        assert_eq!(wrong_license(license, &allowed).as_deref(), expected);
    }

    #[test]
    fn accepts_expressions_that_the_list_satisfies() {
        check_license(Some("MIT OR GPL-3.0-only"), None);
        check_license(Some("MIT/Apache-2.0"), None);
        check_license(Some("MIT AND Apache-2.0 WITH LLVM-exception"), None);
    }

    #[test]
    fn refuses_expressions_that_the_list_does_not_satisfy() {
        check_license(None, Some("states no license"));
        check_license(
            Some("MIT AND GPL-3.0-only"),
            Some("license `MIT AND GPL-3.0-only` is not allowed by deny.toml"),
        );
        check_license(Some("Apache-2.0"), Some("license `Apache-2.0` is not allowed by deny.toml"));
        check_license(
            Some("Beerware-ish"),
            Some("license `Beerware-ish` cannot be read: unknown term"),
        );
    }

    #[test]
    fn refuses_what_does_not_come_from_the_registry() {
        let tree = fixture::tree(
            "//- Cargo.toml\n[workspace]\nresolver = \"3\"\nmembers = [\"ours\"]\n\
             exclude = [\"theirs\"]\n\
             //- ours/src/lib.rs\n//- ours/Cargo.toml\n[package]\nname = \"ours\"\n\
             [dependencies.theirs]\npath = \"../theirs\"\n\
             //- theirs/src/lib.rs\n//- theirs/Cargo.toml\n[package]\nname = \"theirs\"\n\
             license = \"GPL-3.0-only\"\n",
        );
        let metadata = tree::metadata(tree.path(), &["--offline"]).expect("metadata");
        let policy: Policy = toml::from_str(
            "licenses.allow = [\"MIT\"]\nsources.allow-registry = [\"https://example.org\"]\n",
        )
        .expect("a policy");
        let theirs: Vec<&Package> =
            metadata.packages.iter().filter(|package| package.name == "theirs").collect();
        assert_eq!(
            check(&policy, &theirs).expect("known licenses"),
            [
                Problem::new("theirs 0.0.0", "license `GPL-3.0-only` is not allowed by deny.toml"),
                Problem::new("theirs 0.0.0", "comes from a path, not crates.io"),
            ]
        );
        let excepted: Policy = toml::from_str(
            "licenses.allow = []\nlicenses.exceptions = [{ crate = \"theirs\", allow = [\"GPL-3.0-only\"] }]\n\
             sources.allow-registry = [\"https://example.org\"]\n",
        )
        .expect("a policy");
        assert_eq!(
            check(&excepted, &theirs).expect("known licenses"),
            [Problem::new("theirs 0.0.0", "comes from a path, not crates.io")]
        );
        assert_eq!(
            duplicates(&[theirs[0], theirs[0]]),
            BTreeMap::from([("theirs".to_owned(), vec!["0.0.0".to_owned(), "0.0.0".to_owned()])])
        );
    }
}
