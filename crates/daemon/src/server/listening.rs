//! Where the server listens, and for how many.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::ServerError;

/// A socket there, whose directory is made if need be. One that a server has left behind is replaced.
pub(super) fn listen(path: &Path) -> Result<OwnedFd, ServerError> {
    let failed = |source| ServerError::Listen { path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    let listener = match dimmer_protocol::listen(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match dimmer_protocol::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(failed(source)),
                Ok(_) => return Err(ServerError::Taken(path.to_owned())),
            }
            std::fs::remove_file(path).map_err(failed)?;
            dimmer_protocol::listen(path).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    // Root's is for everybody's programs, which see nothing of each other; a user's for the user's own.
    let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode))
        .map_err(|error| failed(error.into()))?;
    Ok(listener)
}

/// Allows as many files as may be; how many peers that is good for, some being left for other uses.
pub(super) fn allow_many_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    /// The server's own files, what is passed, and those of the metrics.
    const OTHERS: u64 = 64;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(OTHERS);
    usize::try_from(most).unwrap_or(usize::MAX).max(1)
}
