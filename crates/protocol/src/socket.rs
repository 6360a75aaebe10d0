//! The socket: where it is, and packets with files over it. No function here waits.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::closing::refuse_files;

/// The environment variable with the path of the server's socket.
pub const SOCKET: &str = "DIMMER_SOCKET";

/// Maximum number of files with a packet.
const FILES: usize = 2;

/// The files that came with a packet.
pub type Files = [Option<OwnedFd>; FILES];

/// Returns an environment variable, but only if the program has no more rights than its parent,
/// which has set the variable. Otherwise the parent could make the program read or write something
/// with the program's rights. Source: secure_getenv(3).
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    // SAFETY: reads what the kernel has given the process.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_privileged { None } else { std::env::var_os(name) }
}

/// Where a server's socket may be, in the order in which to try them: the path in [`SOCKET`] alone,
/// if it is set; otherwise the socket of the user's own server, then that of the machine. A
/// program with more rights than its parent uses only the last.
#[must_use]
pub fn candidates() -> Vec<PathBuf> {
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(path) = variable(SOCKET) {
        return vec![path.into()];
    }
    let own = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    let directories = own.into_iter().chain([PathBuf::from("/run")]);
    directories.map(|directory| directory.join("dimmer/socket")).collect()
}

fn new() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Connects to the server at `path`. Any process that may put a socket into the directory can pose
/// as the server. For the paths of [`candidates`], these are processes of root and of the user.
///
/// # Errors
/// If there is no server, or if it is busy (then try later).
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Makes a socket at `path` that other processes can connect to. The kernel refuses files that they
/// send, if it can ([`refuse_files`]).
///
/// # Errors
/// If the socket cannot be made, for example because a file of that name exists.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    /// Maximum number of connections that wait to be accepted.
    const BACKLOG: i32 = 1024;
    let socket = new()?;
    refuse_files(&socket);
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes a socket that listens already, under the number at which the service manager has passed
/// it. Nothing else in the process may use that number.
///
/// # Errors
/// If it is not such a socket.
pub fn inherit(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: if there is no such file, the kernel returns an error.
    let passed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::net::sockopt::socket_acceptconn(passed)?;
    rustix::io::ioctl_fionbio(passed, true)?;
    refuse_files(passed);
    Ok(rustix::io::fcntl_dupfd_cloexec(passed, 3)?)
}

/// The path of a listening socket, if it has one.
#[must_use]
pub fn place(listener: &OwnedFd) -> Option<PathBuf> {
    let address: SocketAddrUnix = rustix::net::getsockname(listener).ok()?.try_into().ok()?;
    let path = OsString::from_vec(address.path()?.to_bytes().to_owned());
    Some(path.into())
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The id of the process that has connected; 0 if it is in a PID namespace that this process
    /// cannot see.
    pub process: i32,
    /// Its user id.
    pub user: u32,
}

/// Returns the process at the other end, as the kernel noted it at the time of the connection
/// (`SO_PEERCRED`, unix(7)). `rustix` has no value for a process that cannot be seen.
///
/// # Errors
/// If `socket` is not a connection.
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    #[expect(clippy::cast_possible_truncation, reason = "three numbers")]
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `who`, which has that size; both live
    // until the call returns.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut length,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Credentials { process: who.pid, user: who.uid })
}

/// Sends a packet with files. Does not wait.
///
/// # Errors
/// If the packet cannot be sent at once, or the other side has closed the connection.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !with.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut with, flags)?;
    Ok(())
}

/// Whether the other side has received everything that was sent to it.
///
/// # Errors
/// If it is not a socket.
pub fn is_all_received(socket: impl AsFd) -> io::Result<bool> {
    let mut left: libc::c_int = 0;
    // SAFETY: the kernel writes a number to `left` (`SIOCOUTQ`, unix(7)), which outlives the call.
    let status = unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, std::ptr::from_mut(&mut left))
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(left == 0)
}

/// Receives a packet, if there is one. Returns the packet's length and the files that came with it;
/// `bytes` holds as much of the packet as fits. A length of 0 means that the other side has closed
/// the connection. Allocates nothing.
///
/// # Errors
/// If the socket fails.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Option<(usize, Files)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
    match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut with, flags) {
        Ok(message) => {
            let mut files = Files::default();
            for message in with.drain() {
                if let RecvAncillaryMessage::ScmRights(came) = message {
                    files.iter_mut().zip(came).for_each(|(place, file)| *place = Some(file));
                }
            }
            Ok(Some((message.bytes, files)))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(Errno::CONNRESET) => Ok(Some((0, Files::default()))),
        Err(error) => Err(error.into()),
    }
}

/// Receives a packet like [`receive`], from a sender that is not trusted, and never takes a file: a
/// packet with files stays in the socket, and so do the files.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for a packet with files; or if the socket fails.
pub fn hear(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    let socket = socket.as_fd();
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let mut none = RecvAncillaryBuffer::default();
    // Only peeks: this thread would have to close the files for which there is no room.
    let peeked = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(bytes)],
        &mut none,
        flags | RecvFlags::PEEK,
    );
    let taken = match peeked {
        Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "sends files"));
        }
        Ok(_) => rustix::net::recv(socket, bytes, flags).map(|(_, length)| length),
        Err(error) => Err(error),
    };
    match taken {
        Ok(length) => Ok(Some(length)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(Errno::CONNRESET) => Ok(Some(0)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::{Hello, Owned, Table, Welcome};

    #[test]
    fn packets_and_files_cross() {
        let directory = std::env::temp_dir().join(format!("dimmer-socket-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("socket");
        assert!(connect(&path).is_err());
        let server = listen(&path).unwrap();
        assert_eq!(place(&server), Some(path.clone()));
        let client = connect(&path).unwrap();
        assert!(receive(&client, &mut [0; 64]).unwrap().is_none());
        send(client.as_fd(), &Hello::Watch.to_bytes(), &[]).unwrap();
        let accepted = rustix::net::accept_with(&server, SocketFlags::CLOEXEC).unwrap();
        let own = credentials(&accepted).unwrap();
        assert_eq!(own.process.cast_unsigned(), std::process::id());
        assert_eq!(own.user, std::fs::metadata("/proc/self").unwrap().uid());
        assert!(credentials(std::fs::File::open("/dev/null").unwrap()).is_err());
        let mut bytes = [0; 64];
        let (length, files) = receive(&accepted, &mut bytes).unwrap().unwrap();
        assert_eq!(Hello::parse(&bytes[..length]), Ok(Hello::Watch));
        assert!(matches!(files, [None, None]));
        let table = Owned::<Table>::new().unwrap();
        send(accepted.as_fd(), &Welcome.to_bytes(), &[table.as_fd(), table.as_fd()]).unwrap();
        let (length, files) = receive(&client, &mut bytes).unwrap().unwrap();
        assert_eq!(Welcome::parse(&bytes[..length]), Ok(Welcome));
        assert!(matches!(files, [Some(_), Some(_)]));
        assert!(is_all_received(&accepted).unwrap());
        // A packet that is too long is reported with its full length.
        send(accepted.as_fd(), &[1; 100], &[]).unwrap();
        assert!(!is_all_received(&accepted).unwrap());
        assert_eq!(receive(&client, &mut bytes).unwrap().unwrap().0, 100);
        drop(accepted);
        assert_eq!(receive(&client, &mut bytes).unwrap().unwrap().0, 0);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
