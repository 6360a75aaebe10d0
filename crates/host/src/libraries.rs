//! Where the dynamic loader finds libraries, and which files a process runs code from.
//!
//! The lookup follows ld.so(8): first the directories that the needing file names, then those of
//! `LD_LIBRARY_PATH`, then the system's. In each directory the variants for newer processors come
//! first (`glibc-hwcaps`, since glibc 2.33); they may contain wide code. The loader's cache is not
//! read, because it is made from the system's directories.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::cpuid::Feature;
use crate::root::{Root, RootError};

/// Variants for newer processors, the newest first, with the features that each needs, as far as
/// Dimmer distinguishes them (System V ABI, x86-64 supplement, §3.1.1).
const VARIANTS: [(&str, &[Feature]); 3] = [
    (
        "glibc-hwcaps/x86-64-v4/",
        &[
            Feature::Avx512f,
            Feature::Avx512bw,
            Feature::Avx512cd,
            Feature::Avx512dq,
            Feature::Avx512vl,
        ],
    ),
    ("glibc-hwcaps/x86-64-v3/", &[Feature::Avx2, Feature::Fma, Feature::F16c, Feature::Osxsave]),
    ("glibc-hwcaps/x86-64-v2/", &[Feature::Avx]),
];

/// The loader's built-in directories.
const STANDARD: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// The loader's configuration file.
const CONFIGURATION: &str = "/etc/ld.so.conf";

/// Maximum depth of includes in configuration files.
const DEEPEST: u32 = 8;

/// The library search path of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    root: Root,
    /// Directories in search order.
    directories: Vec<String>,
    /// Subdirectories to try in each directory before the directory itself.
    variants: Vec<&'static str>,
}

impl Search {
    /// Reads the loader's configuration under `root`. `library_path` is the value of
    /// `LD_LIBRARY_PATH`; `features` are the processor features that code may use.
    #[must_use]
    pub fn new(root: &Root, library_path: Option<&str>, features: &[Feature]) -> Self {
        let own = library_path.unwrap_or_default().split([':', ';']);
        let own = own.filter(|directory| !directory.is_empty()).map(str::to_owned);
        let mut directories: Vec<String> = own.collect();
        configured(root, CONFIGURATION, DEEPEST, &mut directories);
        directories.extend(STANDARD.map(str::to_owned));
        let usable =
            VARIANTS.iter().filter(|(_, needs)| needs.iter().all(|f| features.contains(f)));
        Self { root: root.clone(), directories, variants: usable.map(|(name, _)| *name).collect() }
    }

    /// The path of the library `name`, needed by a file in the directory `origin` that names the
    /// directories `runpath`; `None` if it is not found. A name with a slash is a path.
    #[must_use]
    pub fn find(&self, name: &str, origin: &str, runpath: &[String]) -> Option<PathBuf> {
        if name.contains('/') {
            return self.root.exists(name).then(|| self.root.path(name));
        }
        let own = runpath
            .iter()
            .map(|directory| directory.replace("${ORIGIN}", origin).replace("$ORIGIN", origin));
        let directories = own.chain(self.directories.iter().cloned());
        let in_directory = |directory: String| {
            let variants = self.variants.iter().copied().chain([""]);
            let candidates = variants.map(|variant| format!("{directory}/{variant}{name}"));
            candidates
                .into_iter()
                .find(|path| self.root.exists(path))
                .map(|path| self.root.path(&path))
        };
        directories.into_iter().find_map(in_directory)
    }
}

/// Adds the directories that a configuration file and its includes name.
fn configured(root: &Root, path: &str, deepest: u32, directories: &mut Vec<String>) {
    let Ok(text) = root.text(path) else { return };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(pattern) = line.strip_prefix("include ") {
            if deepest > 0 {
                for file in matching(root, pattern.trim()) {
                    configured(root, &file, deepest - 1, directories);
                }
            }
        } else if line.starts_with('/') {
            directories.push(line.to_owned());
        }
    }
}

/// Files that match a pattern with at most one `*`, which is in the file name.
fn matching(root: &Root, pattern: &str) -> Vec<String> {
    let (directory, name) = pattern.rsplit_once('/').unwrap_or(("/etc", pattern));
    let Some((begin, end)) = name.split_once('*') else {
        return vec![format!("{directory}/{name}")];
    };
    let names = root.list(directory).unwrap_or_default().into_iter();
    let fits = |name: &String| {
        name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end)
    };
    names.filter(fits).map(|name| format!("{directory}/{name}")).collect()
}

/// A file that a process runs code from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its path as the process sees it.
    pub path: String,
    /// The path to read it by, through the process's own view of the file system.
    pub file: PathBuf,
    /// Whether it is the program itself, not a library.
    pub is_program: bool,
}

/// The files that the process `pid` has mapped executable, the program first, then by address.
/// Omits code without a file (generated at run time) and files deleted since, but always includes
/// the program.
///
/// # Errors
/// [`RootError::Read`]: there is no such process, or it belongs to another user.
pub fn mapped(root: &Root, pid: u32) -> Result<Vec<Mapped>, RootError> {
    mapped_and_deleted(root, pid).map(|(mapped, _)| mapped)
}

/// As [`mapped`], and the paths of libraries that were deleted since, as an upgrade does.
///
/// # Errors
/// As [`mapped`].
pub fn mapped_and_deleted(
    root: &Root,
    pid: u32,
) -> Result<(Vec<Mapped>, BTreeSet<String>), RootError> {
    let mut deleted = BTreeSet::new();
    let program = root.link(&format!("/proc/{pid}/exe"))?;
    let program = program.strip_suffix(" (deleted)").unwrap_or(&program).to_owned();
    let file = root.path(&format!("/proc/{pid}/exe"));
    let mut found = vec![Mapped { path: program.clone(), file, is_program: true }];
    root.find_in_lines(&format!("/proc/{pid}/maps"), |line| -> Option<()> {
        let mut fields = line.splitn(6, ' ').filter(|field| !field.is_empty());
        let (_, permissions) = (fields.next(), fields.next().unwrap_or_default());
        let path = fields.last().unwrap_or_default().trim_start();
        let is_code = permissions.contains('x') && path.starts_with('/');
        if !is_code || found.iter().any(|mapped| mapped.path == path) {
            return None;
        }
        if let Some(path) = path.strip_suffix(" (deleted)") {
            let is_library = path != program && !is_memory(path);
            deleted.extend(is_library.then(|| path.to_owned()));
        } else {
            let file = root.path(&format!("/proc/{pid}/root{path}"));
            found.push(Mapped { path: path.to_owned(), file, is_program: false });
        }
        None
    })?;
    Ok((found, deleted))
}

/// Whether a deleted file is memory that the kernel shows as one: it holds code that was generated
/// at run time (Linux `mm/memfd.c`, `mm/shmem.c`, `ipc/shm.c`).
fn is_memory(path: &str) -> bool {
    path.starts_with("/memfd:") || path.starts_with("/SYSV") || path == "/dev/zero"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up machine with these files and their contents.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = directory.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let root = Root::new(directory.path());
        (directory, root)
    }

    const V3: [Feature; 5] =
        [Feature::Avx, Feature::Avx2, Feature::Fma, Feature::F16c, Feature::Osxsave];

    #[test]
    fn libraries_are_found_where_the_loader_looks() {
        let (_kept, root) = machine(&[
            (CONFIGURATION, "include /etc/ld.so.conf.d/*.conf\n# /nowhere\n"),
            ("/etc/ld.so.conf.d/one.conf", "/opt/one # and why\n"),
            ("/opt/one/libone.so.1", ""),
            ("/usr/lib/libstandard.so.2", ""),
            ("/srv/app/libown.so", ""),
            ("/given/libstandard.so.2", ""),
        ]);
        let search = Search::new(&root, None, &[]);
        let find = |name: &str| search.find(name, "/srv/app/bin", &["$ORIGIN/..".to_owned()]);
        assert_eq!(find("libone.so.1"), Some(root.path("/opt/one/libone.so.1")));
        assert_eq!(find("libstandard.so.2"), Some(root.path("/usr/lib/libstandard.so.2")));
        assert!(find("libown.so").is_none(), "made-up machine without /srv/app/bin");
        std::fs::create_dir_all(root.path("/srv/app/bin")).unwrap();
        assert!(find("libown.so").unwrap().ends_with("srv/app/bin/../libown.so"));
        assert_eq!(find("libnone.so"), None);
        let given = Search::new(&root, Some("/given"), &[]);
        let found = given.find("libstandard.so.2", "/", &[]);
        assert_eq!(found, Some(root.path("/given/libstandard.so.2")));
    }

    #[test]
    fn variants_for_newer_processors_come_first_where_the_processor_is_one() {
        let (_kept, root) = machine(&[
            ("/lib/glibc-hwcaps/x86-64-v3/libx.so", ""),
            ("/lib/glibc-hwcaps/x86-64-v4/libx.so", ""),
            ("/lib/libx.so", ""),
        ]);
        let find =
            |features: &[Feature]| Search::new(&root, None, features).find("libx.so", "/", &[]);
        assert_eq!(find(&[]), Some(root.path("/lib/libx.so")));
        assert_eq!(find(&V3), Some(root.path("/lib/glibc-hwcaps/x86-64-v3/libx.so")));
    }

    #[test]
    fn files_of_a_process_are_those_mapped_executable() {
        let maps = "\
555-666 r--p 00000000 fe:00 1   /usr/bin/app
666-777 r-xp 00001000 fe:00 1   /usr/bin/app
777-888 r-xp 00000000 fe:00 2   /usr/lib/lib with space.so
888-999 r-xp 00000000 fe:00 3   /tmp/gone.so (deleted)
888-999 r-xs 00000000 00:01 9   /memfd:doublemapper (deleted)
999-aaa r-xp 00000000 00:00 0
aaa-bbb r-xp 00000000 00:00 0   [vdso]
";
        let (_kept, root) = machine(&[("/proc/7/maps", maps)]);
        std::os::unix::fs::symlink("/usr/bin/app", root.path("/proc/7/exe")).unwrap();
        let found = mapped(&root, 7).unwrap();
        let paths: Vec<&str> = found.iter().map(|mapped| mapped.path.as_str()).collect();
        assert_eq!(paths, ["/usr/bin/app", "/usr/lib/lib with space.so"]);
        assert!(found[0].is_program && !found[1].is_program);
        assert_eq!(found[1].file, root.path("/proc/7/root/usr/lib/lib with space.so"));
        let (_, deleted) = mapped_and_deleted(&root, 7).unwrap();
        assert_eq!(deleted, BTreeSet::from(["/tmp/gone.so".to_owned()]));
        assert!(mapped(&root, 8).is_err());
    }

    #[test]
    fn a_process_with_many_mappings_has_all_of_its_files() {
        let mut maps = "666-777 r-xp 00001000 fe:00 1   /usr/bin/app\n".to_owned();
        maps.push_str(&"7f00-7f01 rw-p 00000000 00:00 0 \n".repeat(100_000));
        maps.push_str("7fff-8000 r-xp 00000000 fe:00 2   /usr/lib/liblast.so\n");
        assert!(maps.len() > 2 << 20);
        let (_kept, root) = machine(&[("/proc/7/maps", &maps)]);
        std::os::unix::fs::symlink("/usr/bin/app", root.path("/proc/7/exe")).unwrap();
        let found = mapped(&root, 7).unwrap();
        assert_eq!(found.last().unwrap().path, "/usr/lib/liblast.so");
        assert!(crate::process::has_mapped(&root, 7, std::path::Path::new("/lib/liblast.so")));
    }
}
