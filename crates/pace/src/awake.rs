//! Cores that do not sleep.

use std::fs::File;

use dimmer_host::root::Root;
use dimmer_host::tune;
use dimmer_host::unavailable::Unavailable;

/// While this value lives, the kernel keeps all cores awake: a thread that waits for an event goes
/// on without the time that a core takes to wake up, and the core keeps its clock.
#[derive(Debug)]
pub struct Awake {
    _file: File,
}

/// Has the kernel keep cores awake until the result is dropped, or the process ends in any way. The
/// kernel's interface (`/dev/cpu_dma_latency`) is for all cores at once, so the calling thread has
/// its core awake wherever it goes. It costs the energy of all idle cores.
///
/// # Errors
/// [`Unavailable`]: no interface, or no permission, which only root has by default.
pub fn awake() -> Result<Awake, Unavailable> {
    awake_under(&Root::live())
}

/// The same on a made-up machine, where nothing is written.
///
/// # Errors
/// As [`awake`].
pub fn awake_under(root: &Root) -> Result<Awake, Unavailable> {
    tune::keep_awake(root).map(|file| Awake { _file: file })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn needs_a_file_that_can_be_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::new(directory.path());
        let missing = awake_under(&root).expect_err("no file");
        assert_eq!(missing.why, "no /dev/cpu_dma_latency");
        let path = root.path(tune::WAKE_UP);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(&path, "").expect("a file");
        awake_under(&root).expect("awake");
        assert_eq!(fs::read(&path).expect("the file"), []);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("permissions");
        let missing = awake_under(&root).expect_err("no permission");
        assert_eq!(missing.why, "no permission to write /dev/cpu_dma_latency");
        assert_eq!(missing.remedy, "run as root");
    }
}
