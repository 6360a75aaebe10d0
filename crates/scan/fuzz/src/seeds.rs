//! Sound files to damage.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The folders to search.
const FOLDERS: [&str; 2] = ["/usr/lib", "/usr/bin"];
/// Most files to look at.
const MOST_FILES: usize = 20_000;
/// Largest size of a small file, in bytes. A scan of one takes microseconds.
const SMALL: u64 = 40 << 10;
/// How many small files to use.
const MOST_SMALL: usize = 24;
/// Largest size of a large file, in bytes. These show times that grow faster than the length.
const LARGE: u64 = 1 << 20;
/// How many large files to use.
const MOST_LARGE: usize = 6;

/// Libraries and programs of this machine, always the same ones.
pub fn found() -> Vec<PathBuf> {
    let (mut small, mut large) = (Vec::new(), Vec::new());
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(PathBuf::from).collect();
    let mut looked_at = 0;
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let Ok(kind) = path.symlink_metadata() else { continue };
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && kind.len() <= LARGE && looked_at < MOST_FILES {
                looked_at += 1;
                if is_linked(&path) {
                    let found = if kind.len() <= SMALL { &mut small } else { &mut large };
                    found.push((kind.len(), path));
                }
            }
        }
    }
    small.sort();
    large.sort();
    let mut paths = spread(&small, MOST_SMALL);
    paths.extend(spread(&large, MOST_LARGE));
    paths
}

/// Whether its header is that of a program or library for x86-64.
fn is_linked(path: &Path) -> bool {
    let mut header = [0; 20];
    let whole = fs::File::open(path).and_then(|mut file| file.read_exact(&mut header));
    let kind = [header[16], header[18], header[19]];
    whole.is_ok() && header.starts_with(b"\x7fELF\x02\x01") && matches!(kind, [2 | 3, 62, 0])
}

/// At most `most` files, evenly by size.
fn spread(sorted: &[(u64, PathBuf)], most: usize) -> Vec<PathBuf> {
    let step = sorted.len().div_ceil(most).max(1);
    sorted.iter().step_by(step).map(|(_, path)| path.clone()).collect()
}
