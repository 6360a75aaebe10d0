//! Watchers' requests for the state: their order, and when it is a user's turn. All requests of a
//! user are answered at once, and publishing to one user takes a bounded part of the server's time.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Publishing to one user takes at most one part in this number of the server's time.
const OF_USER: u32 = 10;

/// The requests that wait, and the users' turns.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Connection and user of each request, in order.
    waiting: BTreeMap<u64, (u64, u32)>,
    /// The order of the next request.
    next: u64,
    /// When a user may get a state again, if that is not now.
    turns: HashMap<u32, Turn>,
}

/// When a user may get a state again.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// After it has read the state being written. The duration is the time that assembling it took.
    IsWritten(Duration),
    /// From this moment on.
    From(Instant),
}

impl Requests {
    /// A connection of the user asks for the state. Returns the order of its request.
    pub(super) fn ask(&mut self, connection: u64, user: u32) -> u64 {
        let order = self.next;
        self.waiting.insert(order, (connection, user));
        self.next += 1;
        order
    }

    /// The connection of the request of this order has gone.
    pub(super) fn withdraw(&mut self, order: u64) {
        self.waiting.remove(&order);
    }

    /// Takes all requests of the user that asked first of those whose turn it is. Returns the user
    /// and the connections. If there is none, the error is when the next turn is, as far as known.
    pub(super) fn take_next(&mut self, now: Instant) -> Result<(u32, Vec<u64>), Option<Instant>> {
        self.turns.retain(|_, turn| !matches!(turn, Turn::From(from) if *from <= now));
        let mut next = None::<Instant>;
        let mut turn = None;
        for (_, user) in self.waiting.values() {
            match self.turns.get(user) {
                None => {
                    turn = Some(*user);
                    break;
                }
                // When that is over is known later.
                Some(Turn::IsWritten(_)) => {}
                Some(Turn::From(from)) => next = next.into_iter().chain([*from]).min(),
            }
        }
        let user = turn.ok_or(next)?;
        let mut taken = Vec::new();
        self.waiting.retain(|_, (connection, of)| {
            let is_taken = *of == user;
            taken.extend(is_taken.then_some(*connection));
            !is_taken
        });
        Ok((user, taken))
    }

    /// A state for the user, which took this long to assemble, is being written. Until that is
    /// over, it is not the user's turn.
    pub(super) fn is_written(&mut self, user: u32, took: Duration) {
        self.turns.insert(user, Turn::IsWritten(took));
    }

    /// The state for the user has been written, which took this long.
    pub(super) fn was_written(&mut self, user: u32, took: Duration, now: Instant) {
        let took = match self.turns.get(&user) {
            Some(Turn::IsWritten(before)) => took + *before,
            _ => took,
        };
        self.turns.insert(user, Turn::From(now + took * OF_USER));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn users_come_in_the_order_of_their_first_request_each_with_all_of_theirs() {
        let (mut requests, now) = (Requests::default(), Instant::now());
        for (connection, user) in [(1, 7), (2, 8), (3, 7)] {
            requests.ask(connection, user);
        }
        let withdrawn = requests.ask(4, 7);
        requests.withdraw(withdrawn);
        assert_eq!(requests.take_next(now), Ok((7, vec![1, 3])));
        assert_eq!(requests.take_next(now), Ok((8, vec![2])));
        assert_eq!(requests.take_next(now), Err(None));
    }

    #[test]
    fn a_user_waits_until_its_state_is_written_and_ten_times_as_long_as_that_took() {
        let (mut requests, now) = (Requests::default(), Instant::now());
        requests.ask(1, 7);
        requests.is_written(7, 2 * MS);
        assert_eq!(requests.take_next(now), Err(None));
        requests.was_written(7, MS, now);
        let turn = now + 30 * MS;
        assert_eq!(requests.take_next(now), Err(Some(turn)));
        // Others do not wait for it.
        requests.ask(2, 8);
        assert_eq!(requests.take_next(now), Ok((8, vec![2])));
        assert_eq!(requests.take_next(turn), Ok((7, vec![1])));
    }
}
