//! Rules about dependencies between crates: they only point downwards, as ARCHITECTURE.md draws
//! them, and `processor` depends on no operating system.
//!
//! [`crate::dependencies`] checks licenses and sources of foreign crates.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use cargo_metadata::{DependencyKind, Metadata, Package, PackageId};

use crate::tree::Problem;

/// The dependencies of each crate within the workspace. A new crate or a new edge is a change of
/// the architecture and starts in ARCHITECTURE.md.
const EDGES: [(&str, &[&str]); 36] = [
    (
        "dimmer-bench",
        &[
            "dimmer-host",
            "dimmer-locks",
            "dimmer-marks",
            "dimmer-pace",
            "dimmer-policy",
            "dimmer-probe",
            "dimmer-processor",
            "dimmer-protocol",
            "dimmer-runtime",
        ],
    ),
    ("dimmer-boost", &["dimmer-contention"]),
    ("dimmer-c", &["dimmer-locks", "dimmer-marks", "dimmer-pace", "dimmer-runtime"]),
    (
        "dimmer-cli",
        &[
            "dimmer-bench",
            "dimmer-fleet",
            "dimmer-hook",
            "dimmer-host",
            "dimmer-launch",
            "dimmer-narrow",
            "dimmer-observe",
            "dimmer-policy",
            "dimmer-probe",
            "dimmer-processor",
            "dimmer-protocol",
            "dimmer-profile",
            "dimmer-ps",
            "dimmer-report",
            "dimmer-runtime",
            "dimmer-scan",
            "dimmer-sim",
            "dimmer-study",
            "dimmer-top",
            "dimmer-validate",
            "dimmer-watch",
        ],
    ),
    ("dimmer-contention", &["dimmer-policy", "dimmer-protocol", "dimmer-runtime"]),
    (
        "dimmer-daemon",
        &[
            "dimmer-host",
            "dimmer-pace",
            "dimmer-policy",
            "dimmer-probe",
            "dimmer-processor",
            "dimmer-protocol",
            "dimmer-watch",
        ],
    ),
    ("dimmer-fleet", &["dimmer-host", "dimmer-processor"]),
    ("dimmer-hook", &["dimmer-processor", "dimmer-scan"]),
    ("dimmer-host", &["dimmer-processor"]),
    (
        "dimmer-launch",
        &[
            "dimmer-contention",
            "dimmer-hook",
            "dimmer-host",
            "dimmer-narrow",
            "dimmer-observe",
            "dimmer-pace",
            "dimmer-policy",
            "dimmer-probe",
            "dimmer-processor",
            "dimmer-protocol",
            "dimmer-runtime",
            "dimmer-scan",
        ],
    ),
    ("dimmer-locks", &["dimmer-pace", "dimmer-policy", "dimmer-processor", "dimmer-runtime"]),
    (
        "dimmer-marks",
        &["dimmer-host", "dimmer-policy", "dimmer-processor", "dimmer-protocol", "dimmer-runtime"],
    ),
    ("dimmer-narrow", &[]),
    ("dimmer-observe", &["dimmer-hook", "dimmer-host", "dimmer-processor"]),
    ("dimmer-pace", &["dimmer-host", "dimmer-policy", "dimmer-processor", "dimmer-protocol"]),
    ("dimmer-policy", &["dimmer-processor"]),
    (
        "dimmer-preload",
        &[
            "dimmer-hook",
            "dimmer-marks",
            "dimmer-narrow",
            "dimmer-policy",
            "dimmer-processor",
            "dimmer-runtime",
            "dimmer-scan",
        ],
    ),
    ("dimmer-probe", &["dimmer-host", "dimmer-processor"]),
    ("dimmer-processor", &[]),
    ("dimmer-profile", &["dimmer-host", "dimmer-launch", "dimmer-processor", "dimmer-scan"]),
    ("dimmer-protocol", &[]),
    ("dimmer-ps", &["dimmer-host", "dimmer-launch", "dimmer-processor", "dimmer-scan"]),
    (
        "dimmer-report",
        &[
            "dimmer-bench",
            "dimmer-fleet",
            "dimmer-hook",
            "dimmer-host",
            "dimmer-launch",
            "dimmer-narrow",
            "dimmer-observe",
            "dimmer-policy",
            "dimmer-probe",
            "dimmer-processor",
            "dimmer-profile",
            "dimmer-ps",
            "dimmer-scan",
            "dimmer-sim",
            "dimmer-study",
            "dimmer-validate",
            "dimmer-watch",
        ],
    ),
    ("dimmer-runtime", &["dimmer-host", "dimmer-policy", "dimmer-processor", "dimmer-protocol"]),
    ("dimmer-scan", &["dimmer-processor"]),
    ("dimmer-sim", &["dimmer-policy", "dimmer-processor"]),
    ("dimmer-study", &["dimmer-launch", "dimmer-policy", "dimmer-processor", "dimmer-sim"]),
    ("dimmer-swp", &["dimmer-marks"]),
    ("dimmer-swp-dummy", &[]),
    ("dimmer-swp-migrate", &["dimmer-marks"]),
    ("dimmer-top", &["dimmer-host", "dimmer-processor", "dimmer-report", "dimmer-watch"]),
    ("dimmer-ultmigration", &["dimmer-marks"]),
    ("dimmer-ultmigration-dummy", &[]),
    ("dimmer-validate", &["dimmer-policy", "dimmer-processor", "dimmer-sim"]),
    ("dimmer-watch", &["dimmer-host", "dimmer-policy", "dimmer-processor", "dimmer-protocol"]),
    ("xtask", &[]),
];

/// Crates that call an operating system.
const SYSTEM_CRATES: [&str; 6] =
    ["libc", "linux-raw-sys", "nix", "rustix", "winapi", "windows-sys"];

/// What `dimmer` does without: the policy server, and what only that has. Commands talk to it by
/// `dimmer-protocol` and `dimmer-watch`.
const NOT_IN_CLI: [&str; 4] = ["dimmer-daemon", "hyper", "tokio", "tracing"];

/// The commands may erase the type of an error; a library's callers need it.
const MAY_USE_ANYHOW: [&str; 3] = ["dimmer-cli", "dimmer-daemon", "xtask"];

/// Checks the edges of the workspace's dependency graph.
///
/// # Errors
/// When `metadata` has no resolved graph.
pub(crate) fn check(metadata: &Metadata) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let members = metadata.workspace_packages();
    let ours: BTreeSet<&str> = members.iter().map(|package| package.name.as_str()).collect();
    let allowed = BTreeMap::from(EDGES);
    for package in &members {
        let name = package.name.as_str();
        let Some(edges) = allowed.get(name) else {
            problems.push(Problem::new(name, "is a crate that ARCHITECTURE.md does not have"));
            continue;
        };
        let edges = BTreeSet::from_iter(edges.iter().copied());
        let found: BTreeSet<&str> =
            direct(package, &[DependencyKind::Normal, DependencyKind::Build])
                .filter(|dependency| ours.contains(dependency))
                .collect();
        for extra in found.difference(&edges) {
            problems.push(Problem::new(name, format!("must not depend on {extra}")));
        }
        for absent in edges.difference(&found) {
            problems.push(Problem::new(name, format!("no longer depends on {absent}")));
        }
        for extra in direct(package, &[DependencyKind::Development])
            .filter(|dependency| ours.contains(dependency) && !edges.contains(dependency))
        {
            problems.push(Problem::new(name, format!("must not depend on {extra} in its tests")));
        }
        if direct(package, &[DependencyKind::Normal]).any(|dependency| dependency == "anyhow")
            && !MAY_USE_ANYHOW.contains(&name)
        {
            problems.push(Problem::new(name, "is a library: its errors are enums, not anyhow"));
        }
    }
    for (crate_name, forbidden) in
        [("dimmer-cli", NOT_IN_CLI.as_slice()), ("dimmer-processor", SYSTEM_CRATES.as_slice())]
    {
        let Some(package) = members.iter().find(|package| package.name == crate_name) else {
            continue;
        };
        for name in all_dependencies(metadata, &package.id)? {
            if forbidden.contains(&name) {
                problems.push(Problem::new(crate_name, format!("depends on {name} in the end")));
            }
        }
    }
    Ok(problems)
}

fn direct<'a>(
    package: &'a Package,
    kinds: &'a [DependencyKind],
) -> impl Iterator<Item = &'a str> + 'a {
    package
        .dependencies
        .iter()
        .filter(|dependency| kinds.contains(&dependency.kind))
        .map(|dependency| dependency.name.as_str())
}

/// Names of all crates that are linked into `start`, directly or not.
fn all_dependencies<'a>(metadata: &'a Metadata, start: &'a PackageId) -> Result<BTreeSet<&'a str>> {
    let graph = metadata.resolve.as_ref().context("cargo metadata without a graph")?;
    let mut seen = BTreeSet::new();
    let mut pending = vec![start];
    while let Some(id) = pending.pop() {
        let node = graph.nodes.iter().find(|node| node.id == *id).context("a node of the graph")?;
        for dependency in &node.deps {
            let is_linked =
                dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal);
            if is_linked && seen.insert(&dependency.pkg) {
                pending.push(&dependency.pkg);
            }
        }
    }
    Ok(seen.into_iter().map(|id| metadata[id].name.as_str()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{self, fixture};

    /// Compares the problems found in a workspace of these crates, as for [`found`].
    #[track_caller]
    fn check(crates: &[&str], expected: &[(&str, &str)]) {
        let expected: Vec<Problem> =
            expected.iter().map(|(place, what)| Problem::new(place, what)).collect();
        assert_eq!(found(crates), expected);
    }

    /// Builds a workspace of `crates`, given as `NAME: DEPENDENCY, ...` (`dev ` before a dependency
    /// of the tests), and returns the problems found in it. Names that are not the project's stand
    /// for foreign crates.
    #[track_caller]
    fn found(crates: &[&str]) -> Vec<Problem> {
        let folder = |name: &str| {
            let is_ours = name.starts_with("dimmer-") || name == "xtask";
            format!("{}/{name}", if is_ours { "ours" } else { "foreign" })
        };
        let mut text = "//- Cargo.toml\n[workspace]\nresolver = \"3\"\nmembers = [\"ours/*\"]\n\
                        exclude = [\"foreign\"]\n"
            .to_owned();
        for line in crates {
            let (name, dependencies) = line.split_once(':').expect("a colon");
            let path = folder(name);
            text += &format!(
                "//- {path}/src/lib.rs\n//- {path}/Cargo.toml\n[package]\nname = \"{name}\"\n"
            );
            for dependency in dependencies.split(',').map(str::trim).filter(|name| !name.is_empty())
            {
                let (table, name) = match dependency.strip_prefix("dev ") {
                    Some(name) => ("dev-dependencies", name),
                    None => ("dependencies", dependency),
                };
                text += &format!("[{table}.{name}]\npath = \"../../{}\"\n", folder(name));
            }
        }
        let directory = fixture::tree(&text);
        let metadata = tree::metadata(directory.path(), &["--offline"]).expect("metadata");
        super::check(&metadata).expect("a graph")
    }

    #[test]
    fn accepts_edges_that_point_downwards() {
        check(
            &[
                "dimmer-processor: thiserror",
                "dimmer-host: dimmer-processor, libc",
                "thiserror:",
                "libc:",
            ],
            &[],
        );
    }

    #[test]
    fn refuses_new_and_lost_edges() {
        check(
            &["dimmer-processor: xtask", "dimmer-host:", "xtask:"],
            &[
                ("dimmer-host", "no longer depends on dimmer-processor"),
                ("dimmer-processor", "must not depend on xtask"),
            ],
        );
        check(
            &["dimmer-processor: dev xtask", "xtask:"],
            &[("dimmer-processor", "must not depend on xtask in its tests")],
        );
    }

    #[test]
    fn refuses_unknown_crates() {
        check(
            &["dimmer-utils:"],
            &[("dimmer-utils", "is a crate that ARCHITECTURE.md does not have")],
        );
    }

    #[test]
    fn refuses_an_operating_system_below_processor() {
        check(
            &["dimmer-processor: between", "between: libc", "libc:"],
            &[("dimmer-processor", "depends on libc in the end")],
        );
    }

    #[test]
    fn refuses_the_policy_server_in_the_command() {
        check(&["dimmer-processor: between", "between: tokio", "tokio:"], &[]);
        let problems = found(&["dimmer-cli: between", "between: hyper", "hyper: tokio", "tokio:"]);
        for server in ["hyper", "tokio"] {
            let problem = Problem::new("dimmer-cli", format!("depends on {server} in the end"));
            assert!(problems.contains(&problem), "{problems:?}");
        }
    }

    #[test]
    fn refuses_erased_errors_in_libraries() {
        check(
            &["dimmer-processor: anyhow", "xtask: anyhow", "anyhow:"],
            &[("dimmer-processor", "is a library: its errors are enums, not anyhow")],
        );
    }
}
