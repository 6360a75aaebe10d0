//! Locks: their owners, and the threads that wait.

use std::collections::VecDeque;

use super::Machine;
use crate::queue::Target;
use crate::{Observer, SimError};

/// A lock: its owner, and the threads that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Lock {
    pub(super) owner: Option<usize>,
    waiting: VecDeque<usize>,
}

impl Lock {
    /// The owner, and then the threads that wait before this one, in order.
    pub(super) fn before(&self, thread: usize) -> impl Iterator<Item = usize> {
        let waiting = self.waiting.iter().copied().take_while(move |other| *other != thread);
        self.owner.into_iter().chain(waiting)
    }
}

impl<O: Observer> Machine<O> {
    /// The thread takes the lock, or waits for it. Returns whether it has the lock.
    pub(super) fn takes(&mut self, thread: usize, lock: usize) -> bool {
        if self.locks.len() <= lock {
            self.locks.resize(lock + 1, Lock::default());
        }
        let taken = &mut self.locks[lock];
        if taken.owner.is_some() {
            taken.waiting.push_back(thread);
            self.threads[thread].waits_for = Some(lock);
            return false;
        }
        taken.owner = Some(thread);
        true
    }

    /// The thread releases the lock, to the thread that has waited longest.
    pub(super) fn unlock(&mut self, thread: usize, lock: usize) -> Result<(), SimError> {
        let held = self.locks.get_mut(lock).filter(|held| held.owner == Some(thread));
        let Some(held) = held else {
            let (at_us, thread) = (self.now_us(), self.threads[thread].totals.name.clone());
            return Err(SimError::NotLocked { at_us, thread, lock });
        };
        held.owner = held.waiting.pop_front();
        if let Some(next) = held.owner {
            self.threads[next].waits_for = None;
            self.threads[next].wakes = Some(self.now);
            self.queue.set(Target::Thread(next), Some(self.now));
        }
        Ok(())
    }

    /// Fails if the thread waits for itself through a chain of locks and owners.
    pub(super) fn no_deadlock(&self, thread: usize) -> Result<(), SimError> {
        let mut waiting = Vec::new();
        let mut waits = thread;
        while let Some(lock) = self.threads[waits].waits_for
            && let Some(owner) = self.locks[lock].owner
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
