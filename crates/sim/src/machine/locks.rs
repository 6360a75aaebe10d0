//! Locks: their owners, and the threads that wait.

use std::collections::VecDeque;

use super::Machine;
use crate::queue::Target;
use crate::{Observer, SimError};

/// All locks. A lock that no thread has taken yet is free.
#[derive(Clone, Debug, Default)]
pub(super) struct Locks(Vec<Lock>);

/// A lock: its owner, and the threads that wait, the first to come first.
#[derive(Clone, Debug, Default)]
struct Lock {
    owner: Option<usize>,
    waiting: VecDeque<usize>,
}

impl Locks {
    /// The thread takes the lock, or waits for it. Returns whether it has the lock.
    fn take(&mut self, thread: usize, lock: usize) -> bool {
        if self.0.len() <= lock {
            self.0.resize(lock + 1, Lock::default());
        }
        let taken = &mut self.0[lock];
        if taken.owner.is_some() {
            taken.waiting.push_back(thread);
            return false;
        }
        taken.owner = Some(thread);
        true
    }

    /// The owner releases the lock, to the thread that has waited longest. Returns that thread, if
    /// one has waited; `None` if the thread does not have the lock.
    fn release(&mut self, thread: usize, lock: usize) -> Option<Option<usize>> {
        let held = self.0.get_mut(lock).filter(|held| held.owner == Some(thread))?;
        held.owner = held.waiting.pop_front();
        Some(held.owner)
    }

    /// The thread that has the lock.
    fn owner(&self, lock: usize) -> Option<usize> {
        self.0.get(lock)?.owner
    }

    /// A lock that the thread has, if it has any.
    pub(super) fn held_by(&self, thread: usize) -> Option<usize> {
        self.0.iter().position(|lock| lock.owner == Some(thread))
    }

    /// The owner of the lock, and then the threads that wait for it before this one, in order.
    pub(super) fn before(&self, lock: usize, thread: usize) -> impl Iterator<Item = usize> {
        let lock = self.0.get(lock);
        let owner = lock.and_then(|lock| lock.owner);
        let waiting = lock.into_iter().flat_map(|lock| lock.waiting.iter().copied());
        owner.into_iter().chain(waiting.take_while(move |other| *other != thread))
    }
}

impl<O: Observer> Machine<O> {
    /// The thread takes the lock, or waits for it. Returns whether it has the lock.
    pub(super) fn takes(&mut self, thread: usize, lock: usize) -> bool {
        let is_taken = self.locks.take(thread, lock);
        if !is_taken {
            self.threads[thread].waits_for = Some(lock);
        }
        is_taken
    }

    /// The thread releases the lock, to the thread that has waited longest.
    pub(super) fn unlock(&mut self, thread: usize, lock: usize) -> Result<(), SimError> {
        let Some(next) = self.locks.release(thread, lock) else {
            let (at_us, thread) = (self.now_us(), self.threads[thread].totals.name.clone());
            return Err(SimError::NotLocked { at_us, thread, lock });
        };
        if let Some(next) = next {
            self.threads[next].waits_for = None;
            if std::mem::take(&mut self.threads[next].spins) {
                self.stops_spinning(next);
            } else {
                self.threads[next].wakes = Some(self.now);
                self.queue.set(Target::Thread(next), Some(self.now));
            }
        }
        Ok(())
    }

    /// A thread that spins has got its lock: the code that it executes meanwhile is over.
    fn stops_spinning(&mut self, thread: usize) {
        if let Some(interrupted) = &mut self.threads[thread].interrupted {
            interrupted.ends = self.now;
            return;
        }
        for (core, of_core) in self.cores.iter_mut().enumerate() {
            let mut slots = of_core.slots.iter_mut().flatten();
            if let Some(running) = slots.find(|running| running.thread == thread) {
                running.ends = self.now;
                self.queue.set(Target::Core(core), Some(self.now));
                return;
            }
        }
    }

    /// Fails if the thread waits for itself through a chain of locks and owners.
    pub(super) fn no_deadlock(&self, thread: usize) -> Result<(), SimError> {
        let mut waiting = Vec::new();
        let mut waits = thread;
        while let Some(lock) = self.threads[waits].waits_for
            && let Some(owner) = self.locks.owner(lock)
        {
            let (name, by) = (&self.threads[waits].totals.name, &self.threads[owner].totals.name);
            waiting.push(format!("thread {name} waits for lock {lock}, which {by} holds"));
            if owner == thread {
                let at_us = self.now_us();
                return Err(SimError::Deadlock { at_us, waiting });
            }
            waits = owner;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_goes_to_the_threads_in_the_order_in_which_they_came() {
        let mut locks = Locks::default();
        assert!(locks.take(1, 3) && !locks.take(2, 3) && !locks.take(5, 3) && locks.take(1, 0));
        assert_eq!((locks.owner(3), locks.owner(2), locks.owner(9)), (Some(1), None, None));
        assert_eq!(locks.before(3, 5).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(locks.before(9, 5).count(), 0);
        assert_eq!((locks.release(2, 3), locks.release(1, 9)), (None, None));
        assert_eq!(locks.release(1, 3), Some(Some(2)));
        assert_eq!(
            (locks.held_by(1), locks.held_by(2), locks.held_by(5)),
            (Some(0), Some(3), None)
        );
        assert_eq!((locks.release(2, 3), locks.release(5, 3)), (Some(Some(5)), Some(None)));
        assert!(locks.take(2, 3));
    }
}
