//! What Dimmer keeps between runs, in the user's own directories (XDG Base Directory Specification):
//! processor models that the probe has measured, and scans of files.

use std::path::{Path, PathBuf};

use dimmer_host::cpuid::Identity;
use dimmer_processor::class::InstructionClass;

/// Where models are kept, and how; `None` without a home directory.
fn models() -> Option<PathBuf> {
    Some(directory("XDG_STATE_HOME", ".local/state")?.join("dimmer"))
}

/// Where scans are kept; `None` without a home directory.
pub(crate) fn scans() -> Option<PathBuf> {
    Some(directory("XDG_CACHE_HOME", ".cache")?.join("dimmer/scan"))
}

/// Where it is kept what to hook of files, for functions with instructions of these classes; makes the
/// directory. `None` if there can be none.
pub(crate) fn plans(classes: &[InstructionClass]) -> Option<PathBuf> {
    let classes: Vec<&str> = classes.iter().map(|class| class.name()).collect();
    let version = concat!(env!("CARGO_PKG_VERSION"), "-2");
    let cache = directory("XDG_CACHE_HOME", ".cache")?;
    let plans = cache.join("dimmer/plan").join(version).join(classes.join("+"));
    std::fs::create_dir_all(&plans).ok().map(|()| plans)
}

/// The directory that a variable names, or the usual one below the home directory.
fn directory(variable: &str, usual: &str) -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(usual)))
}

/// Where the model of this kind of processor is kept, as measured thoroughly or quickly. A home
/// directory may be that of several machines, so the processor is in the name.
pub(crate) fn model(identity: &Identity, quick: bool) -> Option<PathBuf> {
    let Identity { vendor, family, model, stepping, .. } = identity;
    let effort = if quick { "quick" } else { "full" };
    Some(models()?.join(format!("model-{vendor}-{family}-{model}-{stepping}-{effort}.toml")))
}

/// Replaces a file by one with this content, making its directory; whoever reads it meanwhile gets
/// the old one or the new one.
pub(crate) fn replace(path: &Path, content: &str) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    std::fs::write(&name, content)?;
    std::fs::rename(&name, path)
}
