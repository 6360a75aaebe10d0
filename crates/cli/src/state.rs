//! What commands keep between runs besides models ([`dimmer_host::kept`]), in the user's own directories.

use std::path::{Path, PathBuf};

use dimmer_host::kept::directory;
use dimmer_processor::class::InstructionClass;

/// Where scans are kept; `None` without a home directory.
pub(crate) fn scans() -> Option<PathBuf> {
    Some(directory("XDG_CACHE_HOME", ".cache")?.join("dimmer/scan"))
}

/// Where it is kept which functions of programs were chosen; `None` without a home directory.
pub(crate) fn choices() -> Option<PathBuf> {
    Some(directory("XDG_CACHE_HOME", ".cache")?.join("dimmer/run"))
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

/// Replaces a file by one with this content, making its directory; whoever reads it meanwhile gets
/// the old one or the new one.
pub(crate) fn replace(path: &Path, content: &str) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let written = std::fs::write(&name, content).and_then(|()| std::fs::rename(&name, path));
    // A disk that is full is not to hold what nobody reads.
    written.inspect_err(|_| drop(std::fs::remove_file(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_file_that_cannot_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept");
        replace(&path, "one").unwrap();
        replace(&path, "other").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "other");
        let occupied = directory.path().join("directory");
        std::fs::create_dir_all(occupied.join("full")).unwrap();
        replace(&occupied, "text").unwrap_err();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
