//! What commands keep between runs besides models ([`dimmer_host::cache`]), in the user's own
//! directories.

use std::path::{Path, PathBuf};
use std::sync::Once;

use dimmer_host::cache;
use dimmer_processor::class::InstructionClass;

/// What can be found again takes so much at most (bytes), what one command adds not counted. A
/// guess: two thousand scans, as that of a library takes 30 KB on average.
const MOST_CACHED: u64 = 64 << 20;

/// Where scans are kept; `None` without a home directory.
pub(crate) fn scans() -> Option<PathBuf> {
    Some(cache::directory()?.join("scan"))
}

/// Where it is kept which functions of programs were chosen; `None` without a home directory.
pub(crate) fn choices() -> Option<PathBuf> {
    Some(cache::directory()?.join("run"))
}

/// Where it is kept what to hook of files, for functions with instructions of these classes; makes
/// the directory. `None` if there can be none.
pub(crate) fn plans(classes: &[InstructionClass]) -> Option<PathBuf> {
    let classes: Vec<&str> = classes.iter().map(|class| class.name()).collect();
    let version = concat!(env!("CARGO_PKG_VERSION"), "-8");
    let plans = cache::directory()?.join("plan").join(version).join(classes.join("+"));
    make_room();
    std::fs::create_dir_all(&plans).ok().map(|()| plans)
}

/// Keeps in a file what can be found again; if it cannot be kept, it is found again the next time,
/// nothing else.
pub(crate) fn cache(path: &Path, content: &str) {
    make_room();
    let _ = replace(path, content);
}

/// Has what was not used for longest go where too much is kept: once a command.
fn make_room() {
    static MADE: Once = Once::new();
    MADE.call_once(|| drop(cache::directory().map(|cache| cache::bound(&cache, MOST_CACHED))));
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
