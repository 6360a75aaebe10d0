//! What commands cache between runs besides models ([`dimmer_host::cache`]), in the user's own
//! directories.

use std::path::{Path, PathBuf};
use std::sync::Once;

use dimmer_host::cache;
use dimmer_processor::class::InstructionClass;

/// Size limit of the cache, not counting what the current command adds (bytes). A guess: two
/// thousand scans, since the scan of a library takes 30 KB on average.
const MOST_CACHED: u64 = 64 << 20;

/// The directory of cached scans; `None` without a home directory.
pub(crate) fn scans() -> Option<PathBuf> {
    Some(cache::directory()?.join("scan"))
}

/// The directory of cached choices of functions; `None` without a home directory.
pub(crate) fn choices() -> Option<PathBuf> {
    Some(cache::directory()?.join("run"))
}

/// The directory of cached hook plans for functions with instructions of these classes; creates it.
/// `None` if it cannot be created.
pub(crate) fn plans(classes: &[InstructionClass]) -> Option<PathBuf> {
    let classes: Vec<&str> = classes.iter().map(|class| class.name()).collect();
    let version = concat!(env!("CARGO_PKG_VERSION"), "-8");
    let plans = cache::directory()?.join("plan").join(version).join(classes.join("+"));
    make_room();
    std::fs::create_dir_all(&plans).ok().map(|()| plans)
}

/// Caches a result in a file. If that fails, the only effect is that the next run computes the
/// result again.
pub(crate) fn cache(path: &Path, content: &str) {
    make_room();
    let _ = replace(path, content);
}

/// Evicts the least recently used entries if the cache is over its limit. Runs once per command.
fn make_room() {
    static MADE: Once = Once::new();
    MADE.call_once(|| drop(cache::directory().map(|cache| cache::bound(&cache, MOST_CACHED))));
}

/// Replaces the content of a file and creates its directory if necessary. A concurrent reader gets
/// the old or the new content.
pub(crate) fn replace(path: &Path, content: &str) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let written = std::fs::write(&name, content).and_then(|()| std::fs::rename(&name, path));
    // Do not leave a useless partial file on a full disk.
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
