//! The thread that writes states and recordings: JSON of everything takes longer than the lease
//! holds.
//!
//! A state goes through a pipe, of which the kernel holds 64 KiB. A watcher that does not read its
//! answer ties up that memory for a few seconds, and the text, which all watchers that asked at
//! once share. Then the pipe is emptied. A user gets its next answer when the last one was read, so
//! a watcher that does not even receive its answers has one of them at most. A recording goes as
//! memory files, because steps may come faster than they are read. A recording that leaves too much
//! unread ends.

use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant};

use dimmer_host::root::Root;
use dimmer_protocol::{Socket, Welcome};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::specialise;
use dimmer_watch::record::Line;
use dimmer_watch::state::State;

/// Maximum number of waiting jobs. The size of each is bounded by what the server has: a guess.
const JOBS: usize = 16;

/// How long a watcher may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Interval of the checks whether a watcher has read its answer, or has gone. A guess.
const TURN: Duration = Duration::from_millis(10);

/// Bytes that a recording may leave unread: a minute of a busy machine.
const UNREAD: usize = 64 << 20;

/// A peer that receives states or lines.
#[derive(Clone, Debug)]
pub(super) struct Hearer {
    pub(super) number: u64,
    pub(super) socket: Arc<Socket>,
}

/// A job for the thread.
#[derive(Debug)]
pub(super) enum Job {
    /// Send a state to a user's watchers, with core specialisation as it is then.
    State { user: u32, state: Box<State>, to: Vec<Hearer> },
    /// Send lines to recordings.
    Lines { lines: Vec<Line>, to: Vec<Hearer> },
    /// Nothing: reports that all earlier jobs are done.
    #[cfg(test)]
    Fence(std_mpsc::Sender<()>),
}

/// The result of a job.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// The user whose watchers got a state, and the time that writing it took.
    pub(super) user: Option<(u32, Duration)>,
    /// Peers that get nothing more, and why.
    pub(super) failed: Vec<(u64, &'static str)>,
}

/// The server's handle of the thread.
#[derive(Debug)]
pub(super) struct Teller {
    jobs: mpsc::Sender<Job>,
    done: std_mpsc::Receiver<Done>,
    wake: Arc<OwnedFd>,
}

impl Teller {
    /// Starts the thread, on the machine under `root`.
    pub(super) fn new(root: Root) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags)?);
        let (jobs, to_do) = mpsc::channel(JOBS);
        let (ended, done) = std_mpsc::channel();
        let reports = Reports { ended, wake: Arc::clone(&wake) };
        let run =
            move || tokio::task::LocalSet::new().block_on(&runtime, tell_all(root, to_do, reports));
        std::thread::Builder::new().name("telling".to_owned()).spawn(run)?;
        Ok(Self { jobs, done, wake })
    }

    /// Queues a job; returns it if too many wait already.
    pub(super) fn tell(&self, job: Job) -> Result<(), Job> {
        self.jobs.try_send(job).map_err(mpsc::error::TrySendError::into_inner)
    }

    /// The results of jobs since the last call.
    pub(super) fn done(&self) -> Vec<Done> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        self.done.try_iter().collect()
    }
}

impl AsFd for Teller {
    /// Readable when a job is done.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The channel back to the server.
#[derive(Clone, Debug)]
struct Reports {
    ended: std_mpsc::Sender<Done>,
    wake: Arc<OwnedFd>,
}

impl Reports {
    fn report(&self, done: Done) {
        if self.ended.send(done).is_ok() {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }
}

async fn tell_all(root: Root, mut jobs: mpsc::Receiver<Job>, reports: Reports) {
    let mut unread = std::collections::BTreeMap::new();
    while let Some(job) = jobs.recv().await {
        match job {
            Job::State { user, mut state, to } => {
                let begin = Instant::now();
                state.specialise = specialise::read(&root);
                let text: Arc<[u8]> = serde_json::to_vec(&state).unwrap_or_default().into();
                drop(state);
                let took = begin.elapsed();
                let tell = tell_state(text, to, (user, took), reports.clone());
                drop(tokio::task::spawn_local(tell));
            }
            Job::Lines { lines, to } => {
                let text = text_of(&lines);
                unread.retain(|number, _| to.iter().any(|hearer| hearer.number == *number));
                let mut failed = Vec::new();
                for hearer in to {
                    let left = unread.entry(hearer.number).or_insert(0);
                    if tell_lines(&hearer.socket, &text, left).is_err() {
                        failed.push((hearer.number, "was too slow"));
                    }
                }
                if !failed.is_empty() {
                    reports.report(Done { user: None, failed });
                }
            }
            #[cfg(test)]
            Job::Fence(told) => drop(told.send(())),
        }
    }
}

/// Sends a state to all of a user's watchers that have asked for it.
async fn tell_state(text: Arc<[u8]>, to: Vec<Hearer>, user: (u32, Duration), reports: Reports) {
    let told: Vec<_> = to
        .into_iter()
        .map(|Hearer { number, socket }| {
            let text = Arc::clone(&text);
            let told = tokio::task::spawn_local(async move { through_pipe(&socket, &text).await });
            (number, told)
        })
        .collect();
    let mut failed = Vec::new();
    for (number, told) in told {
        if !matches!(told.await, Ok(Ok(()))) {
            failed.push((number, "did not read its answer"));
        }
    }
    reports.report(Done { user: Some(user), failed });
}

/// Sends a text, and waits until the watcher has read it or has gone.
async fn through_pipe(socket: &Socket, text: &[u8]) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    dimmer_protocol::send(socket.as_fd(), &Welcome.to_bytes(), &[reader.as_fd()])?;
    let read = write_until_read(socket, text, writer, &reader).await;
    // The pages of a pipe count for the process that has written them, until they are read.
    while is_filled(&reader) && matches!(rustix::io::read(&reader, &mut [0; 4096]), Ok(1..)) {}
    read
}

/// Writes a text into a pipe. Returns when the pipe's `reader`, which the watcher has as well, is
/// at the end of the text, or when the watcher has gone.
async fn write_until_read(
    socket: &Socket,
    text: &[u8],
    writer: OwnedFd,
    reader: &OwnedFd,
) -> io::Result<()> {
    let mut writer = pipe::Sender::from_owned_fd(writer)?;
    let until = Instant::now() + PATIENCE;
    let mut left = text;
    while !left.is_empty() && !has_gone(socket) {
        if let Ok(written) = tokio::time::timeout(TURN, writer.write(left)).await {
            left = &left[written?..];
        }
        in_time(until)?;
    }
    drop(writer);
    while is_filled(reader) && !has_gone(socket) {
        tokio::time::sleep(TURN).await;
        in_time(until)?;
    }
    Ok(())
}

/// Fails once that moment has passed.
fn in_time(until: Instant) -> io::Result<()> {
    if Instant::now() < until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

/// Whether a pipe holds anything.
fn is_filled(reader: &OwnedFd) -> bool {
    rustix::io::ioctl_fionread(reader).is_ok_and(|bytes| bytes > 0)
}

/// Whether a watcher, or the server's own side, has closed the connection.
fn has_gone(socket: &Socket) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let is_ready = rustix::event::poll(&mut polled, Some(&Timespec::default()));
    is_ready.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Sends lines as a memory file. `unread` counts the bytes of lines that were not received, as far
/// as that is known.
fn tell_lines(socket: &Socket, text: &str, unread: &mut usize) -> io::Result<()> {
    if dimmer_protocol::is_all_received(socket)? {
        *unread = 0;
    }
    *unread += text.len();
    if *unread > UNREAD.max(text.len()) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let file = rustix::fs::memfd_create(c"dimmer-text", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    dimmer_protocol::send(socket.as_fd(), &Welcome.to_bytes(), &[file.as_fd()])
}

fn text_of(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        // Plain data: all keys are text, and all numbers are valid.
        text.extend(serde_json::to_string(line).ok());
        text.push('\n');
    }
    text
}
