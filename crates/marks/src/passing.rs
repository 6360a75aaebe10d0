//! One thread that passes marks and migrates.

use std::ffi::{c_int, c_uint};

use dimmer_policy::phases::{Core, Decision, Mark, MarkId, Plan, Profile, Settings, Thread};
use dimmer_processor::units::{Time, whole};

use crate::cache::Cache;
use crate::crossing;
use crate::names::Key;

/// The functions by which threads migrate: those of `ultmigration.h`.
#[derive(Clone, Copy, Debug)]
pub struct Mover {
    /// `ult_register_klt`.
    pub register: extern "C" fn(),
    /// `ult_unregister_klt`.
    pub unregister: extern "C" fn(),
    /// `ult_registered`.
    pub registered: extern "C" fn() -> c_int,
    /// `ult_migrate`.
    pub migrate: extern "C" fn(c_uint),
    /// The kind of core that the thread is on, if the library reports it.
    pub core: Option<fn() -> Core>,
}

impl Mover {
    /// The functions of this crate.
    #[must_use]
    pub fn own() -> Self {
        Self {
            register: crossing::register,
            unregister: crossing::unregister,
            registered: crossing::registered,
            migrate: crossing::migrate,
            core: Some(crossing::core),
        }
    }
}

/// What the marks of a program want, as far as it is decided in advance.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) profile: Profile,
    pub(crate) settings: Settings,
}

/// A mark that was looked up.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) mark: MarkId,
    /// Whether its key stands for it from now on.
    pub(crate) is_constant: bool,
    /// All marks so far, if the plan does not have this one yet.
    pub(crate) marks: Option<Vec<Mark>>,
}

/// A thread, and what it knows of the program's marks.
#[derive(Debug)]
pub(crate) struct Passing {
    mover: Mover,
    /// The core of each mark by its key; `None`: the profile does not have the mark.
    known: Cache<(MarkId, Option<Core>)>,
    plan: Plan,
    /// Number of marks that the plan is for.
    planned: usize,
    thread: Thread,
    registration: Registration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registration {
    NotYet,
    /// By the program itself, which may migrate the thread between marks, too.
    Programs,
    Ours,
}

impl Passing {
    pub(crate) fn new(mover: Mover, settings: Settings, now: Time) -> Self {
        let (known, plan) = (Cache::new(), Plan::new(settings));
        let thread = Thread::new(Core::Fast, now);
        let registration = Registration::NotYet;
        Self { mover, known, plan, planned: 0, thread, registration }
    }

    /// Passes a mark: the thread migrates if the mark wants another core.
    ///
    /// * `name`: looks the mark up. Called for keys that are not known, with the number of marks
    ///   that need not be listed again.
    #[inline]
    pub(crate) fn pass(
        &mut self,
        key: Key,
        wanted: &Wanted,
        name: impl FnOnce(usize) -> Named,
        now: impl FnOnce() -> Time,
    ) {
        let (mark, core) = match self.known.get(key) {
            Some(known) => known,
            None => self.learn(key, wanted, name(self.planned)),
        };
        let Some(core) = core else { return };
        if self.registration == Registration::Ours && core == self.thread.core() {
            return;
        }
        self.go(mark, core, now());
    }

    #[cold]
    fn learn(&mut self, key: Key, wanted: &Wanted, named: Named) -> (MarkId, Option<Core>) {
        if let Some(marks) = named.marks {
            self.plan = Plan::of_profile(&wanted.profile, &marks, wanted.settings);
            self.planned = marks.len();
        }
        let known = (named.mark, self.plan.moves_to(named.mark));
        if named.is_constant {
            self.known.insert(key, known);
        }
        known
    }

    /// Migrates to this core, if the plan allows a migration now.
    fn go(&mut self, mark: MarkId, core: Core, now: Time) {
        self.register();
        if self.registration == Registration::Programs {
            (self.mover.migrate)(crossing::code(core));
        } else if let Decision::Move(core) = self.thread.pass(mark, now, &self.plan) {
            (self.mover.migrate)(crossing::code(core));
            if let Some(is_on) = self.mover.core {
                self.thread.set_core(is_on());
            }
        }
    }

    /// Registers the thread, if the program has not done that.
    pub(crate) fn register(&mut self) {
        if self.registration == Registration::NotYet {
            self.registration = Registration::Programs;
            if (self.mover.registered)() == 0 {
                (self.mover.register)();
                self.registration = Registration::Ours;
            }
        }
    }

    /// Brings the thread home, if it was registered here.
    pub(crate) fn leave(&mut self) {
        if self.registration == Registration::Ours {
            (self.mover.unregister)();
        }
        self.registration = Registration::NotYet;
    }
}

/// The time of the thread's clock.
pub(crate) fn now() -> Time {
    let ns = dimmer_protocol::ticks() as f64 / dimmer_protocol::ticks_per_ns();
    Time::from_ns(whole(ns))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use dimmer_policy::phases::Threshold;
    use dimmer_processor::units::Nanos;

    use super::*;

    thread_local! {
        static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
        static REGISTERED: Cell<c_int> = const { Cell::new(0) };
    }

    fn note(call: impl ToString) {
        CALLS.with_borrow_mut(|calls| calls.push(call.to_string()));
    }

    extern "C" fn register() {
        REGISTERED.set(1);
        note("register");
    }

    extern "C" fn unregister() {
        REGISTERED.set(0);
        note("unregister");
    }

    extern "C" fn registered() -> c_int {
        REGISTERED.get()
    }

    extern "C" fn migrate(code: c_uint) {
        note(code);
    }

    /// A thread that passes marks, each 1 ms after the last one, with a mover that takes notes.
    struct Program {
        passing: Passing,
        wanted: Wanted,
        marks: Vec<Mark>,
        time: u64,
    }

    impl Program {
        fn new(cost: Nanos) -> Self {
            let mover = Mover { register, unregister, registered, migrate, core: None };
            let threshold = Threshold::new(0.01).unwrap();
            let settings = Settings { threshold, band: 0.0, cost, worth: 1.0 };
            let profile = Profile::from_text("\"slow\" 0.02\n\"fast\" 0.01\n").unwrap();
            let passing = Passing::new(mover, settings, Time::from_ns(0));
            let marks = ["slow", "fast", "unknown"].map(|name| Mark::new(name).unwrap()).to_vec();
            Self { passing, wanted: Wanted { profile, settings }, marks, time: 0 }
        }

        fn pass(&mut self, name: &str) {
            self.time += 1_000_000;
            let mark = self.marks.iter().position(|mark| mark.name() == name).unwrap();
            let id = MarkId::new(u32::try_from(mark).unwrap());
            let (marks, time) = (self.marks.clone(), Time::from_ns(self.time));
            let named = Named { mark: id, is_constant: true, marks: Some(marks) };
            self.passing.pass([mark, 0], &self.wanted, |_| named, || time);
        }
    }

    #[track_caller]
    fn check(expected: &[&str]) {
        assert_eq!(CALLS.take(), expected);
    }

    #[test]
    fn a_thread_is_where_its_marks_want_it() {
        let mut program = Program::new(Nanos::from_us(1));
        program.pass("unknown");
        check(&[]);
        program.pass("fast");
        check(&["register"]);
        for name in ["fast", "slow", "slow", "unknown", "fast"] {
            program.pass(name);
        }
        check(&["1", "0"]);
        program.passing.leave();
        check(&["unregister"]);
    }

    #[test]
    fn a_thread_that_the_program_has_registered_migrates_at_each_mark() {
        REGISTERED.set(1);
        let mut program = Program::new(Nanos::from_us(1));
        for name in ["slow", "slow", "fast"] {
            program.pass(name);
        }
        program.passing.leave();
        check(&["1", "1", "0"]);
        REGISTERED.set(0);
    }

    #[test]
    fn phases_that_are_shorter_than_a_migration_do_not_go_on_migrating() {
        let mut program = Program::new(Nanos::from_ms(100));
        for _ in 0..50 {
            program.pass("slow");
            program.pass("fast");
        }
        // Four at once, and then one in 100 ms.
        check(&["register", "1", "0", "1", "0"]);
    }
}
