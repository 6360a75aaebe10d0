//! Sockets whose other end may be anybody, closed without waiting for what that one has put there.
//!
//! A packet may carry files of its sender's, and where it was not received they are closed with the
//! socket. To close a file can take as long as its owner likes: a TCP connection with `SO_LINGER`
//! waits there until what it has to send was taken (socket(7)). Two things keep that from the
//! thread that serves everybody: the kernel is told to take no files where it can be told
//! (`SO_PASSRIGHTS`, Linux 6.16), and sockets are closed elsewhere, by a thread that ends: the
//! kernel waits for nothing then (`PF_EXITING` in `inet_release`).
//!
//! Such a thread has a table of files of its own (`unshare(CLONE_FILES)`), in which each file of
//! the process is as well. While it is there, closing a socket in the process' table is never the
//! last closing, and takes no time; the last is the thread's end.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Closes sockets, in a thread of its own.
#[derive(Clone, Debug)]
pub struct Closer {
    doomed: Sender<OwnedFd>,
    waiting: Arc<AtomicUsize>,
}

impl Closer {
    /// Begins to.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn new() -> std::io::Result<Self> {
        let (doomed, sockets) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&waiting);
        let close = move || close_all(&sockets, &count);
        std::thread::Builder::new().name("closing".to_owned()).spawn(close)?;
        Ok(Self { doomed, waiting })
    }

    /// How many are not closed yet. Each is a file of this process: whoever lets others in stops
    /// where these are many.
    #[must_use]
    pub fn waiting(&self) -> usize {
        // Relaxed: a number that others change at any time.
        self.waiting.load(Ordering::Relaxed)
    }

    fn close(&self, socket: OwnedFd) {
        // Relaxed: see `waiting`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Err(unsent) = self.doomed.send(socket) {
            // The thread has gone, as at the end: the kernel closes it with the process.
            let _ = std::os::fd::IntoRawFd::into_raw_fd(unsent.0);
        }
    }
}

/// A socket whose other end may be anybody; dropped, it is closed by a [`Closer`].
#[derive(Debug)]
pub struct Socket {
    socket: ManuallyDrop<OwnedFd>,
    closer: Closer,
}

impl Socket {
    /// Takes this socket.
    #[must_use]
    pub fn new(socket: OwnedFd, closer: &Closer) -> Self {
        Self { socket: ManuallyDrop::new(socket), closer: closer.clone() }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: it is not used again, as this is the drop of what holds it.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        self.closer.close(socket);
    }
}

/// Has the kernel refuse files that are sent to this socket, and to those that are accepted from
/// it; before Linux 6.16 it takes them.
pub fn refuse_files(socket: impl AsFd) {
    /// Source: `include/uapi/asm-generic/socket.h` of Linux 6.16.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    #[expect(clippy::cast_possible_truncation, reason = "a number's size")]
    let length = size_of_val(&no) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `no`, which has as many and lives until then. An
    // option that it does not know it refuses.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            length,
        )
    };
}

/// Closes what comes until all who send have gone, as many at once as wait.
fn close_all(sockets: &Receiver<OwnedFd>, waiting: &AtomicUsize) {
    while let Ok(first) = sockets.recv() {
        let doomed: Vec<OwnedFd> = std::iter::once(first).chain(sockets.try_iter()).collect();
        let count = doomed.len();
        close_at_an_end(doomed);
        // Relaxed: see `Closer::waiting`.
        waiting.fetch_sub(count, Ordering::Relaxed);
    }
}

/// Closes them such that the last closing is the end of a thread.
fn close_at_an_end(doomed: Vec<OwnedFd>) {
    let (holds, held) = channel();
    let (closed, is_closed) = channel::<()>();
    let hold = move || {
        // SAFETY: from here to its end, this thread opens, closes and uses no file.
        let own = unsafe { libc::unshare(libc::CLONE_FILES) };
        let _ = holds.send(own == 0);
        // An error says that the sender has gone, which is as good.
        let _ = is_closed.recv();
    };
    let holder = std::thread::Builder::new().name("closed".to_owned()).spawn(hold);
    // Without a table of its own, as where system calls are filtered, they are closed right here:
    // whatever that takes is time of this thread's alone.
    let _is_held = held.recv();
    drop(doomed);
    drop(closed);
    if let Ok(holder) = holder {
        let _ = holder.join();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;
    use crate::socket::{hear, send};

    /// How long something is waited for that will come.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A connection whose last closing waits for an hour, and its other end.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        one.set_nonblocking(true).unwrap();
        while one.write(&[0; 65536]).is_ok() {}
        one.set_nonblocking(false).unwrap();
        let hour = Some(Duration::from_secs(3600));
        rustix::net::sockopt::set_socket_linger(&one, hour).unwrap();
        (one, other)
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    /// Runs this in a thread, and fails where it does not come to an end.
    #[track_caller]
    fn ends<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        let (result, came) = channel();
        let _ = std::thread::spawn(move || result.send(run()));
        came.recv_timeout(PATIENCE).expect("it waits")
    }

    #[test]
    fn files_that_nobody_took_hold_up_nobody_and_are_closed() {
        let closer = Closer::new().unwrap();
        let (server, client) = pair();
        let (one, other) = lingering();
        send(client.as_fd(), b"hello", &[one.as_fd()]).unwrap();
        drop(one);
        let server = Socket::new(server, &closer);
        ends(move || drop(server));
        // It gets to closing others as well.
        let (second, mut other_client) = pair();
        drop(Socket::new(second, &closer));
        ends(move || while hear(&mut other_client, &mut [0]).unwrap() != Some(0) {});
        // What was sent over it is there until its end, which comes.
        other.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!((&other).read_to_end(&mut Vec::new()).unwrap() > 0);
        ends(move || while closer.waiting() > 0 {});
    }

    #[test]
    fn a_packet_with_files_is_told_and_never_taken() {
        let (server, client) = pair();
        let (one, _other) = lingering();
        send(client.as_fd(), b"one", &[]).unwrap();
        send(client.as_fd(), b"two", &[one.as_fd()]).unwrap();
        send(client.as_fd(), b"three", &[]).unwrap();
        drop(one);
        let server = ends(move || {
            let mut bytes = [0; 3];
            assert_eq!(hear(&server, &mut bytes).unwrap(), Some(3));
            assert_eq!(&bytes, b"one");
            for _ in 0..2 {
                let refused = hear(&server, &mut bytes).unwrap_err();
                assert_eq!(refused.kind(), std::io::ErrorKind::InvalidData);
            }
            server
        });
        let closer = Closer::new().unwrap();
        ends(move || drop(Socket::new(server, &closer)));
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
    fn a_kernel_that_can_refuses_files() {
        let (server, client) = pair();
        refuse_files(&server);
        let file = std::fs::File::open("/dev/null").unwrap();
        match send(client.as_fd(), b"hello", &[file.as_fd()]) {
            Ok(()) => println!("SKIPPED: this kernel has no SO_PASSRIGHTS"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
        }
        send(client.as_fd(), b"hello", &[]).unwrap();
    }
}
