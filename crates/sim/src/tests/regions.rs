//! Marked regions on dedicated cores.

use dimmer_policy::server::{cores, loops};

use super::*;

/// The cost of a hand-over here, one way (ns).
const WAY_NS: f64 = 500.0;

fn always(cores: usize) -> Settings {
    let region_moves = RegionMoves {
        decider: Decider::Always(cores::Settings { most: 1, ..cores::Settings::of(cores) }),
        hand_over_ns: WAY_NS,
        update_calls: 10,
        is_last_extra: false,
    };
    Settings {
        cores: u32::try_from(cores).unwrap(),
        region_moves: Some(region_moves),
        ..Settings::default()
    }
}

/// Bursts of 20 us of 512-bit code, marked, each after a millisecond of scalar code.
fn bursts(times: u64) -> Box<Script> {
    let scalar = scalar(Extent::Instructions(4.3e6));
    let heavy = heavy(Extent::Instructions(100_000.0));
    steps(times, &[Step::Run(scalar), Step::Enter(0), Step::Run(heavy), Step::Leave(0)])
}

#[test]
fn what_is_moved_leaves_its_core_at_the_clock() {
    let mut machine = machine(always(4));
    let thread = machine.spawn("a", bursts(100), Some(0));
    machine.run(Moment::MAX).unwrap();
    let totals = machine.threads().nth(thread).unwrap();
    assert_eq!((totals.calls, totals.moved), (100, 99), "the first comes before the core");
    let levels: Vec<Vec<Picos>> = machine.cores().map(|core| core.level.clone()).collect();
    // Core 0 executed only the first burst, and holds its level for some hundred microseconds.
    assert!(levels[0][2] > Picos::ZERO && levels[0][2] < MS, "{levels:?}");
    // On core 3 the bursts are over before L2 is granted.
    assert!(
        levels[1..3].iter().all(|idle| *idle == [Picos::ZERO; 3]) && levels[3][1] > 99 * US,
        "{levels:?}"
    );
}

#[test]
fn a_hand_over_takes_what_it_takes_each_way() {
    // With one more active core the clock is that of two cores, which is the same.
    let scalar = scalar(Extent::Instructions(43_000.0));
    let region = [Step::Enter(0), Step::Run(scalar), Step::Leave(0)];
    let time = |settings: Settings| {
        let mut machine = machine(settings);
        let thread = machine.spawn("a", steps(1000, &region), Some(0));
        machine.run(Moment::MAX).unwrap();
        let totals = machine.threads().nth(thread).unwrap();
        (totals.finished.unwrap(), totals.moved)
    };
    let (stays, none) = time(Settings { cores: 4, ..Settings::default() });
    let (moved, number) = time(always(4));
    assert_eq!((stays, none, number), (at(10 * MS), 0, 999));
    assert_eq!(moved - stays, 999 * 1000 * PS);
}

#[test]
fn what_is_within_a_region_stays_where_that_is() {
    let code = scalar(Extent::Instructions(43_000.0));
    let nested = [
        Step::Enter(0),
        Step::Run(code),
        Step::Enter(1),
        Step::Run(code),
        Step::Leave(1),
        Step::Run(code),
        Step::Leave(0),
    ];
    let mut machine = machine(always(2));
    let thread = machine.spawn("a", steps(100, &nested), Some(0));
    machine.run(Moment::MAX).unwrap();
    let totals = machine.threads().nth(thread).unwrap();
    assert_eq!((totals.calls, totals.moved), (100, 99), "one call each");
    assert_eq!(totals.finished, Some(at(3 * MS + 99 * 1000 * PS)));
}

#[test]
fn a_dedicated_core_runs_nothing_else_and_threads_find_another() {
    let mut machine = machine(always(2));
    let forever = scalar(Extent::Instructions(43e6));
    for cpu in [0, 1] {
        machine.spawn("other", steps(1, &[Step::Run(forever)]), Some(cpu));
    }
    machine.spawn("a", bursts(20), None);
    machine.run(Moment::MAX).unwrap();
    assert!(machine.threads().all(|thread| thread.finished.is_some()));
    let busy: Vec<Picos> = machine.cores().map(|core| core.level[0]).collect();
    // Both other threads and the scalar part now run on core 0: 10 ms for each of the two, and
    // 20 ms for the scalar part.
    assert!(busy[1] < 3 * MS && busy[0] > 35 * MS, "{busy:?}");
}

#[test]
fn moved_regions_share_the_dedicated_core() {
    // Three threads that run nothing but marked code, on one dedicated core: as if they had one
    // core only.
    let code = scalar(Extent::Instructions(4.3e5));
    let mut machine = machine(always(4));
    for cpu in 0..3 {
        machine.spawn(
            "a",
            steps(50, &[Step::Enter(0), Step::Run(code), Step::Leave(0)]),
            Some(cpu),
        );
    }
    machine.run(Moment::MAX).unwrap();
    let last = machine.threads().filter_map(|thread| thread.finished).max().unwrap();
    assert!((at(147 * MS / 10)..at(16 * MS)).contains(&last), "{last:?}");
}

#[test]
fn a_thread_may_sleep_and_wait_for_locks_on_a_dedicated_core() {
    let code = scalar(Extent::Instructions(43_000.0));
    let region = [
        Step::Enter(0),
        Step::Lock(7),
        Step::Run(code),
        Step::Unlock(7),
        Step::Sleep(5 * US),
        Step::Run(code),
        Step::Leave(0),
        Step::Sleep(3 * US),
    ];
    let mut machine = machine(always(4));
    for _ in 0..5 {
        machine.spawn("a", steps(200, &region), None);
    }
    machine.run(Moment::MAX).unwrap();
    assert!(machine.threads().all(|thread| thread.finished.is_some() && thread.calls == 200));
    assert!(machine.threads().all(|thread| thread.moved >= 190));
}

fn served(
    seed: u64,
    mechanism: Moving,
    threads: usize,
    seconds: u64,
) -> (Vec<ThreadTotals>, Course) {
    let region_moves = RegionMoves::new(mechanism, &model(), 4, Some(2.0 * WAY_NS)).unwrap();
    let settings = Settings { cores: 4, region_moves, seed, ..Settings::default() };
    let mut machine = Machine::new(&model(), settings, Course::default()).unwrap();
    for _ in 0..threads {
        let thread = machine.spawn("a", bursts(u64::MAX), None);
        machine.belongs(thread, 7);
    }
    machine.run(at(seconds * 1000 * MS)).unwrap();
    (machine.threads().cloned().collect(), machine.into_observer())
}

#[test]
fn the_server_decides_in_simulated_time_and_always_the_same() {
    for mechanism in loops::LOOPS.map(Moving::Loop) {
        let (threads, decided) = served(3, mechanism, 3, 20);
        let (calls, moved): (u64, u64) =
            threads.iter().fold((0, 0), |sum, thread| (sum.0 + thread.calls, sum.1 + thread.moved));
        assert!(moved > 0 && moved < calls, "{mechanism:?} {moved} of {calls}");
        assert!(decided.0.iter().any(|(_, served)| served.cores == 1));
        assert_eq!((threads, decided), served(3, mechanism, 3, 20));
    }
}

#[test]
fn without_a_mechanism_marks_change_nothing() {
    let run = |with_marks: bool| {
        let mut machine = machine(Settings { cores: 2, ..Settings::default() });
        let code = [scalar(Extent::Instructions(4.3e6)), heavy(Extent::Instructions(1e5))];
        let marked = [Step::Run(code[0]), Step::Enter(0), Step::Run(code[1]), Step::Leave(0)];
        let plain = [marked[0], marked[2]];
        machine.spawn("a", steps(20, if with_marks { &marked } else { &plain }), None);
        machine.run(Moment::MAX).unwrap();
        let totals = machine.threads().next().cloned().unwrap();
        (totals.finished, machine.cores().cloned().collect::<Vec<_>>(), totals.calls)
    };
    assert_eq!(run(true), run(false));
    assert!(served(1, Moving::None, 1, 1).1.0.is_empty());
}

#[test]
fn an_extra_core_takes_nothing_from_others() {
    let run = |cores: u32, is_last_extra: bool| {
        let mut settings = always(usize::try_from(cores).unwrap());
        settings.region_moves.as_mut().unwrap().is_last_extra = is_last_extra;
        let mut machine = machine(settings);
        for _ in 0..3 {
            machine.spawn("a", steps(1, &[Step::Run(scalar(Extent::Instructions(4.3e6)))]), None);
        }
        machine.run(Moment::MAX).unwrap();
        machine.threads().filter_map(|thread| thread.finished).max().unwrap()
    };
    // No thread has regions, so no core is dedicated; but the threads never get the extra one.
    assert_eq!(run(3, false), run(4, true));
    assert!(run(2, false) < run(2, true));
}

#[test]
fn a_hand_over_that_nobody_knows_is_an_error() {
    let error = RegionMoves::new(Moving::Loop(loops::USUAL), &model(), 4, None).unwrap_err();
    assert!(error.to_string().contains("handing regions over"), "{error}");
    assert_eq!(RegionMoves::new(Moving::None, &model(), 4, None), Ok(None));
}

#[test]
fn a_course_has_its_mean() {
    let serves = |cores| Served { cores, ..Served::default() };
    let course = Course(
        [(10, 1), (20, 3), (40, 0)].map(|(ps, cores)| (Moment::from_ps(ps), serves(cores))).into(),
    );
    let moment = Moment::from_ps;
    let mean = |from, to| course.mean(moment(from), moment(to), |served| served.cores as f64);
    assert_eq!((mean(0, 40), mean(15, 25), mean(20, 20).is_nan()), (1.75, 2.0, true));
    assert_eq!(
        (course.at(moment(9)).cores, course.at(moment(20)).cores, course.at(moment(99)).cores),
        (0, 3, 0)
    );
}
