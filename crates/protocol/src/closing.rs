//! Closes sockets whose other end is not trusted, without waiting for files that the other end
//! sent.
//!
//! A packet may carry files of its sender. If the packet was never received, they are closed with
//! the socket. The owner of a file can make its closing take arbitrarily long: a TCP connection
//! with `SO_LINGER` waits until the data that it has to send was taken (socket(7)). Two measures
//! keep that away from the thread that serves all clients:
//!
//! - The kernel is asked to refuse files where it can (`SO_PASSRIGHTS`, Linux 6.16).
//! - Another thread closes the sockets by ending: the kernel then waits for nothing (`PF_EXITING`
//!   in `inet_release`).
//!
//! Such a thread has its own table of files (`unshare(CLONE_FILES)`), which also holds each file of
//! the process. While the thread lives, closing a socket in the process' table is never the last
//! close, and takes no time. The last close is the end of the thread.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Closes sockets in its own thread.
#[derive(Clone, Debug)]
pub struct Closer {
    doomed: Sender<OwnedFd>,
    waiting: Arc<AtomicUsize>,
}

impl Closer {
    /// Starts the thread.
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

    /// Number of sockets that are not closed yet. Each is a file of this process: a server should
    /// stop accepting connections when there are many.
    #[must_use]
    pub fn waiting(&self) -> usize {
        // Relaxed: other threads may change the number at any time.
        self.waiting.load(Ordering::Relaxed)
    }

    fn close(&self, socket: OwnedFd) {
        // Relaxed: see `waiting`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Err(unsent) = self.doomed.send(socket) {
            // The thread has gone, for example at exit: the kernel closes the socket with the
            // process.
            let _ = std::os::fd::IntoRawFd::into_raw_fd(unsent.0);
        }
    }
}

/// A socket whose other end is not trusted. When it is dropped, a [`Closer`] closes it.
#[derive(Debug)]
pub struct Socket {
    socket: ManuallyDrop<OwnedFd>,
    closer: Closer,
}

impl Socket {
    /// Wraps a socket.
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
        // SAFETY: the socket is not used again, since this is the drop of its owner.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        self.closer.close(socket);
    }
}

/// Makes the kernel refuse files that are sent to this socket, and to sockets that it accepts.
/// Linux before 6.16 does not refuse them.
pub fn refuse_files(socket: impl AsFd) {
    /// Source: `include/uapi/asm-generic/socket.h` of Linux 6.16.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    #[expect(clippy::cast_possible_truncation, reason = "a number's size")]
    let length = size_of_val(&no) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `no`, which has that size and outlives the call.
    // The kernel refuses an option that it does not have.
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

/// Closes the sockets that arrive, until all senders have gone. Sockets that wait at the same time
/// are closed together.
fn close_all(sockets: &Receiver<OwnedFd>, waiting: &AtomicUsize) {
    while let Ok(first) = sockets.recv() {
        let doomed: Vec<OwnedFd> = std::iter::once(first).chain(sockets.try_iter()).collect();
        let count = doomed.len();
        close_at_an_end(doomed);
        // Relaxed: see `Closer::waiting`.
        waiting.fetch_sub(count, Ordering::Relaxed);
    }
}

/// Closes the sockets such that the last close is the end of a thread.
fn close_at_an_end(doomed: Vec<OwnedFd>) {
    let (holds, held) = channel();
    let (closed, is_closed) = channel::<()>();
    let hold = move || {
        // SAFETY: from here to its end, this thread opens, closes and uses no file.
        let own = unsafe { libc::unshare(libc::CLONE_FILES) };
        let _ = holds.send(own == 0);
        // An error means that the sender has gone, which has the same effect.
        let _ = is_closed.recv();
    };
    let holder = std::thread::Builder::new().name("closed".to_owned()).spawn(hold);
    // Without its own table of files, for example where system calls are filtered, the sockets are
    // closed right here. Waiting then delays this thread only.
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

    /// Timeout of events that must happen.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A connection whose last close waits for an hour, and its other end.
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

    /// Runs `run` in a thread, and fails if it does not end.
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
        // It also closes later sockets.
        let (second, mut other_client) = pair();
        drop(Socket::new(second, &closer));
        ends(move || while hear(&mut other_client, &mut [0]).unwrap() != Some(0) {});
        // The data sent over it is readable to its end, and the end comes.
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
