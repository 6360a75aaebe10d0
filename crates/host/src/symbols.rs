//! Files with the function names that a stripped program or library lacks: debug files, and static
//! archives of the same library.
//!
//! Debug files are searched for in the same places as GDB does ("Debugging Information in Separate
//! Files"). The reader must check whether a file matches.

use std::path::PathBuf;

use crate::root::Root;

/// Directory where distributions put debug files.
const DEBUG: &str = "/usr/lib/debug";

/// Directories where distributions put static archives, besides the library's own directory.
const ARCHIVES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// Debug files of a file in the directory `origin`, the most likely ones first: by the file's build
/// id, then by the debug file's name in its link.
#[must_use]
pub fn debug_files(
    root: &Root,
    origin: &str,
    build_id: Option<&[u8]>,
    link: Option<&str>,
) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some((first, rest)) = build_id.and_then(<[u8]>::split_first) {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        places.push(format!("{DEBUG}/.build-id/{first:02x}/{rest}.debug"));
    }
    if let Some(name) = link {
        places.extend([format!("{origin}/{name}"), format!("{origin}/.debug/{name}")]);
        // On systems where `/lib` has become `/usr/lib`, packages may still use either name.
        let other = origin.strip_prefix("/usr").map_or(format!("/usr{origin}"), str::to_owned);
        places.extend([format!("{DEBUG}{origin}/{name}"), format!("{DEBUG}{other}/{name}")]);
    }
    existing(root, places)
}

/// The static archive of a library in the directory `origin` that other files need as `soname`:
/// `libcrypto.a` for `libcrypto.so.3`. `None` if there is none.
#[must_use]
pub fn archive(root: &Root, origin: &str, soname: &str) -> Option<PathBuf> {
    let (name, _) = soname.split_once(".so")?;
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let directories = [origin].into_iter().chain(ARCHIVES);
    let places = directories.map(|directory| format!("{directory}/{name}.a")).collect();
    existing(root, places).into_iter().next()
}

fn existing(root: &Root, mut places: Vec<String>) -> Vec<PathBuf> {
    places.retain(|place| root.exists(place));
    places.iter().map(|place| root.path(place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up machine with these empty files.
    fn machine(files: &[&str]) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        for path in files {
            let path = directory.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let root = Root::new(directory.path());
        (directory, root)
    }

    #[test]
    fn debug_files_are_found_by_build_id_and_by_name() {
        let all = [
            "/usr/lib/debug/.build-id/ab/cdef01.debug",
            "/usr/lib/x.debug",
            "/usr/lib/.debug/x.debug",
            "/usr/lib/debug/usr/lib/x.debug",
            "/usr/lib/debug/lib/x.debug",
        ];
        let (_kept, root) = machine(&all);
        let find = |build_id, link| debug_files(&root, "/usr/lib", build_id, link);
        let expected: Vec<PathBuf> = all.iter().map(|path| root.path(path)).collect();
        let id: &[u8] = &[0xab, 0xcd, 0xef, 0x01];
        assert_eq!(find(Some(id), Some("x.debug")), expected);
        assert_eq!(find(Some(id), None), expected[..1]);
        assert_eq!(find(None, Some("x.debug")), expected[1..]);
        assert!(find(Some(&[]), None).is_empty());
        assert!(find(Some(&[1, 2]), Some("y.debug")).is_empty());
        let mut of_lib = debug_files(&root, "/lib", None, Some("x.debug"));
        of_lib.reverse();
        assert_eq!(of_lib, expected[3..]);
    }

    #[test]
    fn archives_are_found_by_the_name_of_the_library() {
        let (_kept, root) = machine(&["/opt/lib/libone.a", "/usr/lib64/libtwo.a"]);
        let find = |soname| archive(&root, "/opt/lib", soname);
        assert_eq!(find("libone.so.1"), Some(root.path("/opt/lib/libone.a")));
        assert_eq!(find("libtwo.so"), Some(root.path("/usr/lib64/libtwo.a")));
        for none in ["libthree.so.3", "program", ".so", "../lib/libone.so.1"] {
            assert_eq!(find(none), None, "{none}");
        }
    }
}
