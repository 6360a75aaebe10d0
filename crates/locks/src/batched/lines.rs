//! The cache lines between clients and the server of [`super::Batched`]: each client has one for
//! its request, and a group of clients has one for all their answers.
//!
//! A client's request and its answer each have a bit, which changes with each section: the client
//! waits while they differ. So no word is set back.
//!
//! | request's bit | answer's bit | closure | answer |
//! |---|---|---|---|
//! | as the answer's | as the request's | the client's | the client's |
//! | changed by the client | as before | the server's | the server's |

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use loom::sync::atomic::AtomicU32;

/// Clients of a group: their answers and the bits of all fill two lines, which processors fetch
/// together.
///
/// Source: Roghanchi, Eriksson and Basu, "ffwd: delegation is (much) faster than you think" (2017).
pub(super) const GROUP: usize = 15;

/// The bytes of a closure, in its request.
pub(super) type Closure = MaybeUninit<[u64; 6]>;

/// Runs the closure of a request on the data.
pub(super) type Run<T> = unsafe fn(*mut Closure, &mut T) -> Answer;

/// A client's line.
#[repr(C, align(128))]
pub(super) struct Request<T> {
    /// Its lowest bit changes with each request.
    bit: AtomicU32,
    /// What runs the closure. It belongs to the server while the bits differ, as the closure.
    pub(super) run: UnsafeCell<Option<Run<T>>>,
    pub(super) closure: UnsafeCell<Closure>,
}

/// The answers to a group of clients. The server writes the bits last, once for all of them.
#[repr(C, align(128))]
pub(super) struct Answers {
    bits: AtomicU32,
    /// The clients whose sections have panicked.
    panicked: AtomicU32,
    /// Each belongs to its client or to the server, by its bit.
    values: [UnsafeCell<MaybeUninit<usize>>; GROUP],
}

/// A group of clients.
pub(super) struct Group<T> {
    pub(super) requests: [Request<T>; GROUP],
    answers: Answers,
}

// SAFETY: a request's cells belong to its client or to the server, by the bits.
unsafe impl<T> Sync for Request<T> {}
// SAFETY: likewise; a closure that is stored there is `Send`.
unsafe impl<T> Send for Request<T> {}
// SAFETY: likewise.
unsafe impl Sync for Answers {}

/// The answer to a section.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// The bytes of its result, which may have no value.
    Value(MaybeUninit<usize>),
    /// The address of its panic.
    Panic(usize),
}

impl<T> Group<T> {
    pub(super) fn new() -> Self {
        let request = |_| Request {
            bit: AtomicU32::new(0),
            run: UnsafeCell::new(None),
            closure: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let answers = Answers {
            bits: AtomicU32::new(0),
            panicked: AtomicU32::new(0),
            values: [const { UnsafeCell::new(MaybeUninit::uninit()) }; GROUP],
        };
        Self { requests: std::array::from_fn(request), answers }
    }

    /// Asks for the section that is in the client's request.
    pub(super) fn ask(&self, client: usize) {
        let request = &self.requests[client].bit;
        let now = request.load(Ordering::Relaxed);
        // Ordering: Release pairs with the load in `is_asked`: the request is complete.
        request.store(now ^ 1, Ordering::Release);
    }

    /// The client's answer, if it is there. The request and the answer belong to the client then.
    pub(super) fn answer(&self, client: usize) -> Option<Answer> {
        let asked = self.requests[client].bit.load(Ordering::Relaxed) & 1;
        // Ordering: Acquire pairs with the store in `publish`: the answer and what the section did
        // are visible.
        let bits = self.answers.bits.load(Ordering::Acquire);
        if bits >> client & 1 != asked {
            return None;
        }
        // SAFETY: it belongs to the client.
        let value = unsafe { *self.answers.values[client].get() };
        let has_panicked = self.answers.panicked.load(Ordering::Relaxed) >> client & 1 == 1;
        // SAFETY: the address of a panic has a value.
        let panic = has_panicked.then(|| unsafe { value.assume_init() });
        Some(panic.map_or(Answer::Value(value), Answer::Panic))
    }

    /// For the server: whether a client asks for a section that is not in `done`.
    pub(super) fn is_asked(&self, client: usize, done: u32) -> bool {
        // Ordering: Acquire pairs with the store in `ask`: the request is complete.
        self.requests[client].bit.load(Ordering::Acquire) & 1 != done >> client & 1
    }

    /// For the server: stores a client's answer. [`Self::publish`] makes it visible.
    pub(super) fn store(&self, client: usize, answer: Answer) {
        let panicked = self.answers.panicked.load(Ordering::Relaxed);
        let (value, now) = match answer {
            Answer::Value(value) => (value, panicked & !(1 << client)),
            Answer::Panic(panic) => (MaybeUninit::new(panic), panicked | 1 << client),
        };
        // SAFETY: the client asks, so it belongs to the server until it is published.
        unsafe { *self.answers.values[client].get() = value };
        if now != panicked {
            self.answers.panicked.store(now, Ordering::Relaxed);
        }
    }

    /// For the server: the bits of the sections that are done.
    pub(super) fn published(&self) -> u32 {
        self.answers.bits.load(Ordering::Relaxed)
    }

    /// For the server: hands all stored answers over.
    pub(super) fn publish(&self, done: u32) {
        // Ordering: Release pairs with the load in `answer`.
        self.answers.bits.store(done, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;

    use super::*;

    type Data = [loom::cell::UnsafeCell<u64>; 2];

    fn data() -> Data {
        [const { () }; 2].map(|()| loom::cell::UnsafeCell::new(0))
    }

    /// Fails if `ask` does not release, or if `is_asked` does not acquire.
    #[test]
    fn loom_requests_are_complete_when_the_server_sees_them() {
        loom::model(|| {
            let shared = Arc::new((Group::<()>::new(), data()));
            let client = |client: usize| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    // SAFETY: the request is this client's.
                    shared.1[client].with_mut(|own| unsafe { *own = 7 });
                    shared.0.ask(client);
                })
            };
            let clients = [0, 1].map(client);
            let mut done = shared.0.published();
            while done != 0b11 {
                for client in 0..2 {
                    if shared.0.is_asked(client, done) {
                        // SAFETY: the request hands it to the server.
                        shared.1[client].with(|own| assert_eq!(unsafe { *own }, 7));
                        done ^= 1 << client;
                    }
                }
                loom::thread::yield_now();
            }
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }

    /// Fails if `publish` does not release, if `answer` does not acquire, or if the bits are
    /// published before all answers are stored.
    #[test]
    fn loom_answers_are_complete_when_their_clients_see_them() {
        loom::model(|| {
            let shared = Arc::new((Group::<()>::new(), data()));
            shared.0.ask(0);
            shared.0.ask(1);
            let server = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                let mut done = server.0.published();
                for client in [0, 1] {
                    assert!(server.0.is_asked(client, done));
                    // SAFETY: the request hands it to the server.
                    server.1[client].with_mut(|own| unsafe { *own = 7 });
                    let value = Answer::Value(MaybeUninit::new(10));
                    server.0.store(client, [value, Answer::Panic(11)][client]);
                    done ^= 1 << client;
                }
                server.0.publish(done);
            });
            let wait = |client: usize| loop {
                if let Some(answer) = shared.0.answer(client) {
                    // SAFETY: the answer hands it back.
                    shared.1[client].with(|own| assert_eq!(unsafe { *own }, 7));
                    return answer;
                }
                loom::thread::yield_now();
            };
            let [Answer::Value(value), Answer::Panic(panic)] = [0, 1].map(wait) else { panic!() };
            // SAFETY: the server has given it a value.
            assert_eq!((unsafe { value.assume_init() }, panic), (10, 11));
            thread.join().unwrap();
        });
    }
}
