//! The file by which programs see that a server moderates, before they connect.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use dimmer_protocol::clocks_mark;

/// The file beside a server's socket, with the number of its process. Removed when this value is
/// dropped, unless another server's is there by then.
#[derive(Debug)]
pub(crate) struct Mark(PathBuf);

impl Mark {
    /// Makes the file beside this socket. One that is there is replaced: a server that was killed
    /// has left it.
    ///
    /// # Errors
    /// Why there is none, so that no program would ask.
    pub(crate) fn new(socket: &Path) -> Result<Self, String> {
        let path = clocks_mark(socket);
        let failed = |error: std::io::Error| {
            format!("programs could not find the server: cannot create {}: {error}", path.display())
        };
        Self::forget(socket);
        let file = File::options().write(true).create_new(true).mode(0o444).open(&path);
        file.and_then(|mut file| file.write_all(content().as_bytes())).map_err(failed)?;
        Ok(Self(path))
    }

    /// Removes the file that a server has left which was killed, if it may.
    pub(crate) fn forget(socket: &Path) {
        let _ = fs::remove_file(clocks_mark(socket));
    }
}

fn content() -> String {
    format!("{}\n", std::process::id())
}

impl Drop for Mark {
    fn drop(&mut self) {
        if fs::read_to_string(&self.0).is_ok_and(|found| found == content()) {
            let _ = fs::remove_file(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_there_as_long_as_the_server() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let path = directory.path().join("socket.clocks");
        fs::write(&path, "left").unwrap();
        let mark = Mark::new(&socket).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content());
        drop(mark);
        assert!(!path.exists());
        let mark = Mark::new(&socket).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        drop(mark);
        assert!(path.exists(), "it is another server's");
        let missing = Mark::new(&directory.path().join("none/socket")).unwrap_err();
        assert!(missing.contains("none/socket.clocks"), "{missing}");
    }
}
