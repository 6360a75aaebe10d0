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
use std::sync::atomic::Ordering;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU32, AtomicU64};

/// Clients of a group: so many answers and the bits of all fill two lines, which processors fetch
/// together.
///
/// Source: Roghanchi, Eriksson and Basu, "ffwd: delegation is (much) faster than you think" (2017).
pub(super) const GROUP: usize = 15;

/// The bytes of a closure, in its request.
pub(super) type Closure = MaybeUninit<[u64; 6]>;

/// A client's line.
#[repr(C, align(128))]
pub(super) struct Request {
    /// Its lowest bit changes with each request.
    bit: AtomicU32,
    /// What runs the closure. It belongs to the server while the bits differ, as the closure.
    pub(super) run: UnsafeCell<usize>,
    pub(super) closure: UnsafeCell<Closure>,
}

/// The answers to a group of clients. The server writes the bits last, once for all of them.
#[repr(C, align(128))]
pub(super) struct Answers {
    bits: AtomicU32,
    /// The clients whose sections have panicked.
    panicked: AtomicU32,
    values: [AtomicU64; GROUP],
}

/// A group of clients.
pub(super) struct Group {
    pub(super) requests: [Request; GROUP],
    answers: Answers,
}

// SAFETY: a request's cells belong to its client or to the server, by the bits.
unsafe impl Sync for Request {}
// SAFETY: likewise; a closure that is stored there is `Send`.
unsafe impl Send for Request {}

/// The answer to a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The bytes of its result.
    Value(u64),
    /// The address of its panic.
    Panic(u64),
}

impl Group {
    pub(super) fn new() -> Self {
        let request = |_| Request {
            bit: AtomicU32::new(0),
            run: UnsafeCell::new(0),
            closure: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let answers = Answers {
            bits: AtomicU32::new(0),
            panicked: AtomicU32::new(0),
            values: std::array::from_fn(|_| AtomicU64::new(0)),
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
        let value = self.answers.values[client].load(Ordering::Relaxed);
        let has_panicked = self.answers.panicked.load(Ordering::Relaxed) >> client & 1 == 1;
        Some(if has_panicked { Answer::Panic(value) } else { Answer::Value(value) })
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
            Answer::Panic(value) => (value, panicked | 1 << client),
        };
        self.answers.values[client].store(value, Ordering::Relaxed);
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

    /// Fails if `ask` or `publish` does not release, if `is_asked` or `answer` does not acquire, or
    /// if an answer is published before it is stored.
    #[test]
    fn loom_answers_are_complete_when_their_clients_see_them() {
        loom::model(|| {
            let data = [const { () }; 3].map(|()| loom::cell::UnsafeCell::new(0_u64));
            let shared = Arc::new((Group::new(), data));
            let client = |client: usize| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    let (group, data) = &*shared;
                    // SAFETY: the request is this client's.
                    data[client].with_mut(|own| unsafe { *own = 10 + client as u64 });
                    group.ask(client);
                    let answer = loop {
                        if let Some(answer) = group.answer(client) {
                            break answer;
                        }
                        loom::thread::yield_now();
                    };
                    assert_eq!(answer, Answer::Value(20 + client as u64));
                    // SAFETY: the answer hands it back.
                    data[client].with(|own| assert_eq!(unsafe { *own }, 20 + client as u64));
                })
            };
            let clients = [0, 1].map(client);
            let (group, data) = &*shared;
            let mut served = 0;
            while served < 2 {
                let before = group.published();
                let mut done = before;
                for client in 0..2 {
                    if group.is_asked(client, done) {
                        // SAFETY: the request hands it to the server.
                        let value = data[client].with_mut(|own| unsafe {
                            *own += 10;
                            *own
                        });
                        group.store(client, Answer::Value(value));
                        done ^= 1 << client;
                        served += 1;
                    }
                }
                if done != before {
                    group.publish(done);
                } else {
                    loom::thread::yield_now();
                }
            }
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }
}
