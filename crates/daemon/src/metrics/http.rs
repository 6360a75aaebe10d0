//! One page over HTTP, for scrapers that are not trusted.
//!
//! The cost of a connection is bounded: bytes and time of the request's head, no byte of a body,
//! one request, time until the answer is read, one piece of text in memory. The number of
//! connections is bounded too, in all and for each origin. A new connection is always admitted; if
//! there is no room, the oldest one that has not asked yet is closed. Two separate threads do all
//! of this; one of them only requests the state.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use dimmer_watch::address::Address;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::measured::Measured;
use super::text::{Format, Text};
use crate::server::make_directory_of;

/// Limits for the cost of connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time until the head of the request has arrived.
    pub head: Duration,
    /// Total time of a connection.
    pub whole: Duration,
    /// Number of connections.
    pub connections: usize,
    /// Number of connections of one user, over a Unix socket, or of one address.
    pub of_origin: usize,
    /// Number of connections that are being answered.
    pub answered: usize,
}

impl Limits {
    /// Limits for some scrapers and a few people.
    ///
    /// Guesses: a scraper sends its head at once, and Prometheus gives up after 10 s
    /// (`scrape_timeout`).
    pub const USUAL: Self = Self {
        head: Duration::from_secs(5),
        whole: Duration::from_secs(15),
        connections: 64,
        of_origin: 32,
        answered: 8,
    };
}

/// Maximum bytes of a request's head; the least that `hyper` accepts. Prometheus' has some 300.
const HEAD_BYTES: usize = 8192;

/// Maximum number of headers of a request.
const HEADERS: usize = 64;

/// Scrapers get the same state within this time.
const FRESH: Duration = Duration::from_millis(250);

/// How long no connection is accepted when the system has no room for one.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// For TCP.
    Tcp(std::net::TcpListener),
    /// A Unix socket.
    Unix(StdUnixListener),
}

impl Listener {
    /// Listens at an address. Replaces a Unix socket that a server has left behind. A Unix socket
    /// is open to the server's user and group.
    ///
    /// # Errors
    /// If the system does not allow it, or another file is there.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => std::net::TcpListener::bind(address).map(Self::Tcp),
            Address::Unix(path) => unix(path).map(Self::Unix),
        }
    }
}

fn unix(path: &Path) -> io::Result<StdUnixListener> {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    make_directory_of(path)?;
    let listener = StdUnixListener::bind(path).or_else(|error| {
        let is_socket =
            std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        let answer = std::os::unix::net::UnixStream::connect(path);
        let is_left = answer.is_err_and(|why| why.kind() == io::ErrorKind::ConnectionRefused);
        if error.kind() != io::ErrorKind::AddrInUse || !is_socket || !is_left {
            return Err(error);
        }
        std::fs::remove_file(path)?;
        StdUnixListener::bind(path)
    })?;
    dimmer_protocol::refuse_files(&listener);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// The state, or why there is none.
pub type Told = Result<Arc<Measured>, Arc<str>>;

/// Answers scrapers until the process ends. Calls `state` when a scraper asks, on a separate thread
/// and at most once in a quarter of a second.
///
/// # Errors
/// If the system cannot start a thread.
pub fn serve(
    listener: Listener,
    limits: Limits,
    mut state: impl FnMut() -> Result<Measured, String> + Send + 'static,
) -> io::Result<()> {
    let (wanted, wants) = sync_channel::<()>(1);
    let (teller, news) = watch::channel(None);
    let ask = move || {
        while let Ok(()) = wants.recv() {
            let told = state().map(Arc::new).map_err(Arc::from);
            teller.send_replace(Some((Instant::now(), told)));
        }
    };
    std::thread::Builder::new().name("metrics-state".to_owned()).spawn(ask)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let source = Source { wanted, news };
    let run = move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, accept(listener, limits, source))
    };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(run).map(drop)
}

/// The source of the state.
#[derive(Clone, Debug)]
struct Source {
    /// Requests the state; one waiting request is enough for all.
    wanted: SyncSender<()>,
    news: watch::Receiver<Option<(Instant, Told)>>,
}

impl Source {
    /// The state, not older than [`FRESH`] before the call.
    async fn state(mut self) -> Told {
        let gone = || Err(Arc::from("the server ends"));
        let Some(from) = Instant::now().checked_sub(FRESH) else { return gone() };
        loop {
            if let Some((at, told)) = &*self.news.borrow_and_update()
                && *at >= from
            {
                return told.clone();
            }
            // If the channel is full, the request is there already.
            let _ = self.wanted.try_send(());
            if self.news.changed().await.is_err() {
                return gone();
            }
        }
    }
}

/// The origin of a connection, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Address(IpAddr),
    User(u32),
    Unknown,
}

impl Origin {
    /// IPv6 addresses with the same first 64 bits have one origin.
    fn of(address: SocketAddr) -> Self {
        Self::Address(match address.ip().to_canonical() {
            IpAddr::V6(ip) => {
                let [one, two, three, four, ..] = ip.segments();
                Ipv6Addr::new(one, two, three, four, 0, 0, 0, 0).into()
            }
            four => four,
        })
    }
}

/// A connection.
#[derive(Debug)]
struct Known {
    origin: Origin,
    is_answered: bool,
    task: Option<AbortHandle>,
}

/// Connections, the oldest first.
#[derive(Debug)]
struct Connections {
    limits: Limits,
    next: u64,
    known: BTreeMap<u64, Known>,
}

impl Connections {
    /// Admits one more connection, and closes another one if there are as many as allowed.
    fn admit(&mut self, origin: Origin) -> u64 {
        let of_origin = self.known.values().filter(|known| known.origin == origin).count();
        if of_origin >= self.limits.of_origin {
            self.end_oldest(origin);
        } else if self.known.len() >= self.limits.connections {
            self.end_oldest(self.most(|_| true).unwrap_or(origin));
        }
        self.next += 1;
        self.known.insert(self.next, Known { origin, is_answered: false, task: None });
        self.next
    }

    /// The origin that has the most of the connections that count.
    fn most(&self, counts: fn(&Known) -> bool) -> Option<Origin> {
        let origins = || self.known.values().filter(|known| counts(known)).map(|one| one.origin);
        origins().max_by_key(|origin| origins().filter(|other| other == origin).count())
    }

    /// Closes the oldest connection of an origin that has not asked, or if all have asked, the
    /// oldest.
    fn end_oldest(&mut self, origin: Origin) {
        let of_origin = self.known.iter().filter(|(_, known)| known.origin == origin);
        let oldest = of_origin.min_by_key(|(number, known)| (known.is_answered, **number));
        self.end(oldest.map(|(number, _)| *number));
    }

    /// Notes that a connection has asked. If as many as allowed are being answered, closes the
    /// oldest of these of the origin that has the most of them.
    fn answer(&mut self, number: u64) {
        let answered = || self.known.iter().filter(|(_, known)| known.is_answered);
        if answered().count() >= self.limits.answered {
            let most = self.most(|known| known.is_answered);
            let oldest = answered().find(|(_, known)| Some(known.origin) == most);
            self.end(oldest.map(|(number, _)| *number));
        }
        if let Some(known) = self.known.get_mut(&number) {
            known.is_answered = true;
        }
    }

    fn end(&mut self, number: Option<u64>) {
        let known = number.and_then(|number| self.known.remove(&number));
        if let Some(task) = known.and_then(|known| known.task) {
            task.abort();
        }
    }
}

type Shared = Rc<RefCell<Connections>>;

/// Accepts connections.
async fn accept(listener: Listener, limits: Limits, source: Source) -> io::Result<Infallible> {
    let connections = Connections { limits, next: 0, known: BTreeMap::new() };
    let connections = Rc::new(RefCell::new(connections));
    match listener {
        Listener::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => {
                        spawn(&connections, Origin::of(from), stream, source.clone());
                    }
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        }
        Listener::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let who = stream.peer_cred();
                        let origin = who.map_or(Origin::Unknown, |who| Origin::User(who.uid()));
                        spawn(&connections, origin, stream, source.clone());
                    }
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        }
    }
}

fn spawn(
    connections: &Shared,
    origin: Origin,
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    source: Source,
) {
    let number = connections.borrow_mut().admit(origin);
    let (limits, shared) = (connections.borrow().limits, Rc::clone(connections));
    let task = tokio::task::spawn_local(async move {
        let answer = |request: Request<Incoming>| {
            shared.borrow_mut().answer(number);
            let source = source.clone();
            async move { Ok::<_, Infallible>(answer(&request, source).await) }
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEADERS)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        // The peer may have gone, or its request may be invalid: that affects only this connection.
        let _ = tokio::time::timeout(limits.whole, connection).await;
        shared.borrow_mut().known.remove(&number);
    });
    if let Some(known) = connections.borrow_mut().known.get_mut(&number) {
        known.task = Some(task.abort_handle());
    }
}

async fn answer(request: &Request<Incoming>, source: Source) -> Response<Page> {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    let error = |status, text: &str| {
        let mut response = Response::new(Page::Error(Some(Bytes::from(text.to_owned()))));
        *response.status_mut() = status;
        response
    };
    if !is_read {
        let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "there is nothing to write\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    if !request.body().is_end_stream() {
        return error(StatusCode::PAYLOAD_TOO_LARGE, "no body is read here\n");
    }
    if request.uri().path() != "/metrics" {
        return error(StatusCode::NOT_FOUND, "there is nothing but /metrics\n");
    }
    match source.state().await {
        Ok(state) => {
            let mut response = Response::new(Page::Text(Box::new(Text::new(state, format))));
            let kind = HeaderValue::from_static(format.content_type());
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(why) => error(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

/// The body of an answer. A text is made as the connection takes it.
#[derive(Debug)]
enum Page {
    Error(Option<Bytes>),
    Text(Box<Text>),
}

impl Body for Page {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match &mut *self {
            Self::Error(text) => text.take(),
            Self::Text(text) => text.next().map(Bytes::from),
        };
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Error(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            Self::Text(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests;
