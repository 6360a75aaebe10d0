//! One thread that passes marks and migrates.

use std::ffi::{c_int, c_uint};
use std::sync::Mutex;
use std::time::Duration;

use dimmer_policy::phases::{
    Core, Counters, Decision, Follower, Leader, Learned, Mark, MarkId, Plan, Profile, Settings,
    Thread,
};
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

/// Tries to see what was learned, a millisecond apart.
const TRIES: usize = 20;

/// By what the threads of a program migrate at its marks.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// What is decided in advance.
    Profile(Profile, Settings),
    /// What the threads learn.
    Learned(Learning),
}

impl Wanted {
    const fn settings(&self) -> Settings {
        match self {
            Self::Profile(_, settings) => *settings,
            Self::Learned(learning) => learning.settings,
        }
    }
}

/// What the threads of a program learn together.
#[derive(Debug)]
pub(crate) struct Learning {
    settings: Settings,
    /// Threads that find it taken go on, and try again at their next mark.
    leader: Mutex<Leader>,
}

impl Learning {
    pub(crate) fn new(settings: Settings) -> Self {
        let leader = Mutex::new(Leader::new(settings, now()));
        Self { settings, leader }
    }

    /// What is known of the program now; `None` while a thread hands something over for longer than
    /// some milliseconds.
    pub(crate) fn learned(&self) -> Option<Learned> {
        (0..TRIES).find_map(|attempt| {
            if attempt > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.leader.try_lock().ok().map(|leader| leader.learned().clone())
        })
    }
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
    registration: Registration,
    way: Way,
}

/// How its marks are decided.
#[derive(Debug)]
enum Way {
    Profile(ByProfile),
    Learned(Box<Following>),
}

/// A thread that migrates by a profile.
#[derive(Debug)]
struct ByProfile {
    /// The core of each mark by its key; `None`: the profile does not have the mark.
    known: Cache<(MarkId, Option<Core>)>,
    plan: Plan,
    /// Number of marks that the plan is for.
    planned: usize,
    thread: Thread,
}

/// A thread that learns.
#[derive(Debug)]
struct Following {
    known: Cache<MarkId>,
    follower: Follower,
    plan: Plan,
    /// The number of the plan.
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registration {
    NotYet,
    /// By the program itself, which may migrate the thread between marks, too.
    Programs,
    Ours,
}

impl Passing {
    pub(crate) fn new(mover: Mover, wanted: &Wanted, now: Time) -> Self {
        let plan = Plan::new(wanted.settings());
        let way = match wanted {
            Wanted::Profile(..) => Way::Profile(ByProfile {
                known: Cache::new(),
                plan,
                planned: 0,
                thread: Thread::new(Core::Fast, now),
            }),
            Wanted::Learned(learning) => {
                let follower = Follower::new(Core::Fast, now);
                let mut way = Following { known: Cache::new(), follower, plan, number: 0 };
                if let Ok(leader) = learning.leader.try_lock() {
                    way.take_plan(&leader);
                }
                Way::Learned(Box::new(way))
            }
        };
        Self { mover, registration: Registration::NotYet, way }
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
        now: impl Fn() -> Time,
    ) {
        match (&mut self.way, wanted) {
            (Way::Profile(way), Wanted::Profile(profile, settings)) => {
                let (mark, core) = match way.known.get(key) {
                    Some(known) => known,
                    None => way.learn(key, (profile, settings), name(way.planned)),
                };
                let Some(core) = core else { return };
                if self.registration == Registration::Ours && core == way.thread.core() {
                    return;
                }
                self.registration.register(&self.mover);
                way.go(mark, core, now(), (&self.mover, self.registration));
            }
            (Way::Learned(way), Wanted::Learned(learning)) => {
                self.registration.register(&self.mover);
                way.pass(key, learning, name, now, &self.mover);
            }
            _ => {}
        }
    }

    /// Registers the thread, if the program has not done that.
    pub(crate) fn register(&mut self) {
        self.registration.register(&self.mover);
    }

    /// The thread passes no more marks in this session: it hands over what it has counted, and
    /// comes home, if it was registered here.
    pub(crate) fn leave(&mut self, wanted: Option<&Wanted>) {
        if let (Way::Learned(way), Some(Wanted::Learned(learning))) = (&mut self.way, wanted) {
            way.hand_over(learning, now());
        }
        if self.registration == Registration::Ours {
            (self.mover.unregister)();
        }
        self.registration = Registration::NotYet;
    }
}

impl Registration {
    fn register(&mut self, mover: &Mover) {
        if *self == Self::NotYet {
            *self = Self::Programs;
            if (mover.registered)() == 0 {
                (mover.register)();
                *self = Self::Ours;
            }
        }
    }
}

impl ByProfile {
    /// Migrates to this core, if the plan allows a migration now, or if the program itself moves
    /// the thread, too.
    fn go(&mut self, mark: MarkId, core: Core, now: Time, by: (&Mover, Registration)) {
        let (mover, registration) = by;
        if registration == Registration::Programs {
            (mover.migrate)(crossing::code(core));
        } else if let Decision::Move(core) = self.thread.pass(mark, now, &self.plan) {
            (mover.migrate)(crossing::code(core));
            if let Some(is_on) = mover.core {
                self.thread.set_core(is_on());
            }
        }
    }

    #[cold]
    fn learn(
        &mut self,
        key: Key,
        (profile, settings): (&Profile, &Settings),
        named: Named,
    ) -> (MarkId, Option<Core>) {
        if let Some(marks) = named.marks {
            self.plan = Plan::of_profile(profile, &marks, *settings);
            self.planned = marks.len();
        }
        let known = (named.mark, self.plan.moves_to(named.mark));
        if named.is_constant {
            self.known.insert(key, known);
        }
        known
    }
}

impl Following {
    /// Passes a mark, with what `mover` brings.
    fn pass(
        &mut self,
        key: Key,
        learning: &Learning,
        name: impl FnOnce(usize) -> Named,
        now: impl Fn() -> Time,
        mover: &Mover,
    ) {
        // No list of marks is needed.
        let mark = self.known.get(key).unwrap_or_else(|| {
            let named = name(usize::MAX);
            if named.is_constant {
                self.known.insert(key, named.mark);
            }
            named.mark
        });
        let on = || mover.core.map_or(Core::Fast, |core| core());
        let reading = || Counters { time: Some(now() - Time::START), ..Counters::default() };
        let decision = self.follower.pass(mark, on(), reading(), &self.plan);
        if let Decision::Move(core) = decision {
            (mover.migrate)(crossing::code(core));
            self.follower.arrive(mark, on(), reading());
        }
        if self.follower.is_due() && self.hand_over(learning, now()) {
            self.follower.resume(mark, on(), reading());
        }
    }

    /// Hands over what was counted, and takes the newest plan. Returns whether that was possible.
    #[cold]
    fn hand_over(&mut self, learning: &Learning, now: Time) -> bool {
        let Ok(mut leader) = learning.leader.try_lock() else { return false };
        leader.take_in(self.follower.take(), now);
        self.take_plan(&leader);
        true
    }

    fn take_plan(&mut self, leader: &Leader) {
        if leader.plans() != self.number {
            self.plan = leader.plan().clone();
            self.number = leader.plans();
        }
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
            let settings = Settings::by_threshold(threshold, cost);
            let profile = Profile::from_text("\"slow\" 0.02\n\"fast\" 0.01\n").unwrap();
            let wanted = Wanted::Profile(profile, settings);
            let passing = Passing::new(mover, &wanted, Time::from_ns(0));
            let marks = ["slow", "fast", "unknown"].map(|name| Mark::new(name).unwrap()).to_vec();
            Self { passing, wanted, marks, time: 0 }
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
        program.passing.leave(None);
        check(&["unregister"]);
    }

    #[test]
    fn a_thread_that_the_program_has_registered_migrates_at_each_mark() {
        REGISTERED.set(1);
        let mut program = Program::new(Nanos::from_us(1));
        for name in ["slow", "slow", "fast"] {
            program.pass(name);
        }
        program.passing.leave(None);
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

    thread_local! {
        static ON: Cell<Core> = const { Cell::new(Core::Fast) };
    }

    extern "C" fn go(code: c_uint) {
        ON.set(if code == crossing::SLOW_CODE { Core::Slow } else { Core::Fast });
    }

    /// Two marks: what follows the first one takes 100 us on either core, and what follows the
    /// second one 100 us and 150 us.
    #[test]
    fn a_thread_learns_where_it_belongs_at_each_mark() {
        let mover =
            Mover { register, unregister, registered, migrate: go, core: Some(|| ON.get()) };
        let settings = Settings::learning(Threshold::new(0.9).unwrap(), Nanos::from_us(1));
        let wanted = Wanted::Learned(Learning::new(settings));
        // The clock of the machine is the one by which plans are made.
        let time = Cell::new(now());
        let mut passing = Passing::new(mover, &wanted, time.get());
        let mut slow = [0, 0];
        for round in 0..1000 {
            for mark in [0, 1] {
                let id = MarkId::new(mark);
                let named = Named { mark: id, is_constant: true, marks: None };
                passing.pass([id.index(), 0], &wanted, |_| named, || time.get());
                let takes = if (mark, ON.get()) == (1, Core::Slow) { 150 } else { 100 };
                time.set(time.get() + Nanos::from_us(takes));
                slow[id.index()] += u32::from(round >= 500 && ON.get() == Core::Slow);
            }
        }
        check(&["register"]);
        assert!(slow[0] > 450 && slow[1] < 50, "{slow:?}");
        let Wanted::Learned(learning) = &wanted else { unreachable!() };
        let learned = learning.learned().unwrap();
        let value = |mark| learned.value(MarkId::new(mark)).unwrap();
        assert!(value(0) > 0.99 && value(1) < 0.7, "{} {}", value(0), value(1));
        passing.leave(Some(&wanted));
        check(&["unregister"]);
    }
}
