//! The socket: where it is, and packets with files over it. Nothing here waits.

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

/// The environment variable that says where the server's socket is.
pub const SOCKET: &str = "DIMMER_SOCKET";

/// How many files come with a packet at most.
const FILES: usize = 2;

/// The files that came with a packet.
pub type Files = [Option<OwnedFd>; FILES];

/// An environment variable, if the program has no more rights than who has started it, and so has
/// set it: what it makes the program read or write would be done with these rights. Source:
/// secure_getenv(3).
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    // SAFETY: reads what the kernel has given the process.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_privileged { None } else { std::env::var_os(name) }
}

/// Where a server's socket may be, in the order in which they are tried: what [`SOCKET`] says and
/// nothing else, or that of the user's own server, and that of the machine's. In a program that
/// runs with more rights than who has started it, the last alone.
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

/// Connects to the server there. Whoever may put a socket into the directory can be one: where
/// [`candidates`] looks, that is root and the user.
///
/// # Errors
/// If there is none, or if it is busy (then later).
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A socket at that place that others can connect to. Files that they send are refused, where the
/// kernel can ([`refuse_files`]).
///
/// # Errors
/// If there cannot be one, as when something of that name exists.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    /// How many may wait to be let in.
    const BACKLOG: i32 = 1024;
    let socket = new()?;
    refuse_files(&socket);
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A socket that listens already, under the number at which the service manager has passed it;
/// nobody else uses that.
///
/// # Errors
/// If it is none.
pub fn inherit(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: if there is no such file, the kernel says so.
    let passed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::net::sockopt::socket_acceptconn(passed)?;
    rustix::io::ioctl_fionbio(passed, true)?;
    refuse_files(passed);
    Ok(rustix::io::fcntl_dupfd_cloexec(passed, 3)?)
}

/// Where others find a socket that listens, if it has a path.
#[must_use]
pub fn place(listener: &OwnedFd) -> Option<PathBuf> {
    let address: SocketAddrUnix = rustix::net::getsockname(listener).ok()?.try_into().ok()?;
    let path = OsString::from_vec(address.path()?.to_bytes().to_owned());
    Some(path.into())
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process that has connected; 0 if it is in a PID namespace that this process does not
    /// see.
    pub process: i32,
    /// Its user.
    pub user: u32,
}

/// Who is at the other end: what the kernel has noted when it connected (`SO_PEERCRED`, unix(7)).
/// `rustix` has no value for a process that cannot be seen.
///
/// # Errors
/// If that is no connection.
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    #[expect(clippy::cast_possible_truncation, reason = "three numbers")]
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes to `who`, which has as many; both live
    // until the call is over.
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

/// Sends a packet with files, if it can go at once.
///
/// # Errors
/// If it cannot, or the other side has gone.
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

/// Whether the other side has received all that was sent to it.
///
/// # Errors
/// If that is no socket.
pub fn is_all_received(socket: impl AsFd) -> io::Result<bool> {
    let mut left: libc::c_int = 0;
    // SAFETY: the kernel writes a number to `left` (`SIOCOUTQ`, unix(7)), which lives until then.
    let status = unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, std::ptr::from_mut(&mut left))
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(left == 0)
}

/// Takes a packet, if there is one: how long it is, of which no more than there is room for is in
/// `bytes`, and the files that came with it. Length 0: the other side has gone.
///
/// # Errors
/// If the socket fails. Allocates nothing.
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

/// Takes a packet from a sender that may be anybody, as [`receive`] does, but never a file: where
/// one came with it, the packet stays, and so does the file.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for a packet with files; or if the socket fails.
pub fn hear(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    let socket = socket.as_fd();
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let mut none = RecvAncillaryBuffer::default();
    // Looked at without taking it: files for which there is no room would be closed by this thread.
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
        // One that is too long says so.
        send(accepted.as_fd(), &[1; 100], &[]).unwrap();
        assert!(!is_all_received(&accepted).unwrap());
        assert_eq!(receive(&client, &mut bytes).unwrap().unwrap().0, 100);
        drop(accepted);
        assert_eq!(receive(&client, &mut bytes).unwrap().unwrap().0, 0);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
