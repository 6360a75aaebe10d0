//! What Dimmer keeps between runs, in the user's own directories (XDG Base Directory Specification): where it is.

use std::path::PathBuf;

use crate::cpuid::Identity;

/// The directory that a variable names, or the usual one below the home directory; `None` without a home directory.
#[must_use]
pub fn directory(variable: &str, usual: &str) -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(usual)))
}

/// Where the model of this kind of processor is kept, as measured thoroughly or quickly. A home
/// directory may be that of several machines, so the processor is in the name.
#[must_use]
pub fn model(identity: &Identity, quick: bool) -> Option<PathBuf> {
    let Identity { vendor, family, model, stepping, .. } = identity;
    let effort = if quick { "quick" } else { "full" };
    let models = directory("XDG_STATE_HOME", ".local/state")?.join("dimmer");
    Some(models.join(format!("model-{vendor}-{family}-{model}-{stepping}-{effort}.toml")))
}
