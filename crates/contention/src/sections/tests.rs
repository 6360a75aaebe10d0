//! Sections of a made-up program: function 0 takes a lock, 1 releases it, 2 is a section itself.

use super::*;

const TAKE: u32 = 0;
const RELEASE: u32 = 1;
const ALONE: u32 = 2;
const SECTIONS: [Section; 2] =
    [Section { first: TAKE, last: Some(RELEASE) }, Section { first: ALONE, last: None }];

/// The tests share the words that threads share, as those of a process do.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A thread of the made-up program: all of it runs on a thread of its own, with sites of its own.
#[derive(Debug)]
struct Program;

std::thread_local! {
    static SITES: std::cell::Cell<Option<[&'static Site; 2]>> = const { std::cell::Cell::new(None) };
}

fn site(number: usize, kind: Kind) -> Option<&'static Site> {
    assert_eq!(kind, SECTIONS[number].kind());
    SITES.get().map(|sites| sites[number])
}

fn sites() -> [&'static Site; 2] {
    [Box::leak(Box::default()), Box::leak(Box::default())]
}

impl Program {
    fn with(sites: [&'static Site; 2], work: impl FnOnce(Self) + Send) {
        std::thread::scope(|scope| {
            let run = || {
                SITES.set(Some(sites));
                work(Self);
            };
            scope.spawn(run).join().unwrap();
        });
    }

    fn calls(&self, now: u64, function: u32, stack: usize) -> bool {
        called_at(now, function, stack, End::Seen, SECTIONS.into_iter(), site)
    }

    fn jumps(&self, now: u64, function: u32, stack: usize) -> bool {
        called_at(now, function, stack, End::Joint, SECTIONS.into_iter(), site)
    }

    fn returns(&self, now: u64, stack: usize) {
        returned_at(now, stack, SECTIONS.into_iter(), site);
    }

    fn leaves(&self, now: u64, stack: usize) {
        left_at(now, stack, SECTIONS.into_iter(), site);
    }
}

/// Acquisitions, of them with another thread inside, waited; holds, held, the longest; wanted;
/// outside.
#[track_caller]
fn check(site: &Site, expected: [u64; 8]) {
    let all = [
        &site.acquisitions,
        &site.contended,
        &site.waited,
        &site.holds,
        &site.held,
        &site.longest,
        &site.wanted,
        &site.outside,
    ];
    assert_eq!(all.map(|sum| sum.load(Ordering::Relaxed)), expected);
}

/// Runs one thread of the program. Returns its sites.
fn alone(work: impl FnOnce(Program) + Send) -> [&'static Site; 2] {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // A thread of the test before may have ended inside a section.
    for threads in &THREADS {
        threads.inside.store(0, Ordering::Relaxed);
        threads.waits.store(0, Ordering::Relaxed);
    }
    let sites = sites();
    Program::with(sites, work);
    sites
}

#[test]
fn sections_are_written_and_parsed_alike() {
    let text = text(&[(0, Some(1)), (2, None), (1, Some(1))]);
    assert_eq!(text, "0-1 2 1-1");
    let parsed: Vec<_> = text.split(' ').map(Section::parse).collect();
    let expected = [(0, Some(1)), (2, None), (1, Some(1))];
    let expected = expected.map(|(first, last)| Some(Section { first, last }));
    assert_eq!(parsed, expected);
    for section in expected.into_iter().flatten() {
        assert_eq!(Section::unpacked(section.packed()), Some(section));
    }
    assert_eq!(Section::unpacked(0), None);
    for wrong in ["", "x", "1-", "-1", "1-2-3", "4294967296"] {
        assert_eq!(Section::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_section_lasts_from_a_return_to_the_next_call_and_the_first_function_is_the_wait() {
    let [taken, _] = alone(|program| {
        assert!(program.calls(100, TAKE, 0x1000));
        program.returns(130, 0x1000);
        assert!(!program.calls(150, RELEASE, 0x1000));
        assert!(program.calls(250, TAKE, 0x1000));
        program.returns(251, 0x1000);
        assert!(!program.calls(260, RELEASE, 0x1000));
        // Without a section that has begun.
        assert!(!program.calls(270, RELEASE, 0x1000));
    });
    check(taken, [2, 0, 31, 2, 29, 20, 0, 100]);
}

#[test]
fn the_last_return_before_the_end_begins_the_section() {
    let [taken, _] = alone(|program| {
        // The first function calls itself: its outermost call is the wait.
        assert!(program.calls(100, TAKE, 0x1000));
        assert!(!program.calls(110, TAKE, 0x800));
        program.returns(150, 0x1000);
        // It is called again before the end.
        assert!(program.calls(160, TAKE, 0x1000));
        program.returns(170, 0x1000);
        assert!(!program.calls(175, RELEASE, 0x1000));
        assert!(!program.calls(180, RELEASE, 0x1000));
    });
    check(taken, [2, 0, 60, 1, 5, 5, 0, 0]);
}

#[test]
fn a_function_is_a_section_from_its_outermost_call_to_the_return() {
    let [_, alone] = alone(|program| {
        assert!(program.calls(100, ALONE, 0x1000));
        assert!(!program.calls(110, ALONE, 0x800));
        program.returns(140, 0x1000);
        // Reached by a jump from another one, and again by a jump from itself.
        assert!(program.calls(200, TAKE, 0x1000));
        assert!(program.jumps(210, ALONE, 0x1000));
        assert!(!program.jumps(220, ALONE, 0x1000));
        program.returns(230, 0x1000);
        // An exception leaves it.
        assert!(program.calls(300, ALONE, 0x1000));
        program.leaves(301, 0x1000);
        program.returns(400, 0x1000);
    });
    check(alone, [3, 0, 0, 3, 61, 40, 0, 0]);
}

#[test]
fn what_a_jump_leaves_is_not_counted_and_ends_with_the_next_call_there() {
    let [taken, alone] = alone(|program| {
        // longjmp out of both, to further up the stack.
        assert!(program.calls(100, ALONE, 0x1000));
        assert!(program.calls(110, TAKE, 0x800));
        assert!(program.calls(200, TAKE, 0x1800));
        program.returns(203, 0x1800);
        assert!(program.calls(210, ALONE, 0x1000));
        program.returns(220, 0x1000);
        assert!(!program.calls(230, RELEASE, 0x1000));
        // An exception out of the first function: no section has begun.
        assert!(program.calls(300, TAKE, 0x1000));
        program.leaves(310, 0x1000);
        assert!(!program.calls(320, RELEASE, 0x1000));
    });
    check(alone, [2, 0, 0, 1, 10, 10, 0, 0]);
    check(taken, [1, 0, 3, 1, 27, 27, 0, 70]);
}

#[test]
fn a_child_of_fork_is_in_no_section_and_a_call_whose_end_is_not_seen_is_none() {
    let [taken, alone] = alone(|program| {
        let unseen =
            |function| called_at(50, function, 0x1000, End::Unseen, SECTIONS.into_iter(), site);
        assert!(!unseen(TAKE) && !unseen(ALONE));
        assert!(program.calls(100, TAKE, 0x1000));
        program.returns(103, 0x1000);
        assert!(program.calls(104, ALONE, 0x900));
        assert!(program.calls(105, TAKE, 0x800));
        held::forget();
        forget();
        program.returns(110, 0x800);
        program.returns(120, 0x900);
        assert!(!program.calls(130, RELEASE, 0x1000));
    });
    check(alone, [1, 0, 0, 0, 0, 0, 0, 0]);
    check(taken, [1, 0, 3, 0, 0, 0, 0, 0]);
}

#[test]
fn a_thread_that_finds_another_one_inside_waits_and_is_waited_for() {
    let [taken, _] = alone(|program| {
        let sites = SITES.get().unwrap();
        assert!(program.calls(100, TAKE, 0x1000));
        program.returns(101, 0x1000);
        // The other thread stays in the first function until it has ended.
        let (enters, may_return) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Program::with(sites, |other| {
                    assert!(other.calls(105, TAKE, 0x9000));
                    enters.wait();
                    may_return.wait();
                    other.returns(125, 0x9000);
                    assert!(!other.calls(126, RELEASE, 0x9000));
                });
            });
            enters.wait();
            assert!(!program.calls(120, RELEASE, 0x1000));
            may_return.wait();
        });
        // Now none is there.
        assert!(program.calls(200, TAKE, 0x1000));
        program.returns(201, 0x1000);
        assert!(!program.calls(202, RELEASE, 0x1000));
    });
    check(taken, [3, 1, 22, 3, 21, 19, 1, 80]);
}

#[test]
fn a_function_ends_all_its_sections_before_it_begins_one() {
    // The first function of one section is the last one of the section after it.
    const TURNS: [Section; 2] = [
        Section { first: RELEASE, last: Some(TAKE) },
        Section { first: TAKE, last: Some(RELEASE) },
    ];
    fn of_turns(number: usize, _: Kind) -> Option<&'static Site> {
        SITES.get().map(|sites| sites[number])
    }
    let [_, taken] = alone(|_| {
        let calls = |now, function| {
            called_at(now, function, 0x1000, End::Seen, TURNS.into_iter(), of_turns)
        };
        assert!(calls(100, TAKE));
        returned_at(110, 0x1000, TURNS.into_iter(), of_turns);
        assert!(calls(150, RELEASE));
        // The thread is out of the second section while it waits for the first one.
        assert!(!held::is_held(lock(1)));
        let left = of_thread().calls[1].outside_since.load(Ordering::Relaxed);
        assert_eq!((left, of_thread().calls[0].since.load(Ordering::Relaxed)), (150, 150));
        returned_at(160, 0x1000, TURNS.into_iter(), of_turns);
        assert!(held::is_held(lock(0)));
    });
    check(taken, [1, 0, 10, 1, 40, 40, 0, 0]);
}

#[test]
fn a_signal_handler_within_this_library_changes_nothing() {
    let [taken, alone] = alone(|program| {
        assert!(program.calls(100, TAKE, 0x1000));
        program.returns(110, 0x1000);
        let busy = held::Busy::begin();
        assert!(!program.calls(120, RELEASE, 0x800));
        assert!(!program.calls(120, ALONE, 0x800));
        drop(busy);
        assert!(!program.calls(130, RELEASE, 0x1000));
    });
    check(taken, [1, 0, 10, 1, 20, 20, 0, 0]);
    check(alone, [0; 8]);
}

#[test]
fn threads_that_wait_are_counted_until_each_has_entered_or_was_left_by_a_jump() {
    let [taken, _] = alone(|program| {
        let sites = SITES.get().unwrap();
        let [begins, goes_on] = [(); 2].map(|()| std::sync::Barrier::new(2));
        let waits = || THREADS[0].waits.load(Ordering::Relaxed);
        assert!(program.calls(100, TAKE, 0x1000));
        program.returns(101, 0x1000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Program::with(sites, |other| {
                    // Twice, the first time left by a jump.
                    assert!(other.calls(105, TAKE, 0x9000));
                    assert!(other.calls(106, TAKE, 0x9800));
                    begins.wait();
                    goes_on.wait();
                    other.leaves(130, 0x9800);
                });
            });
            begins.wait();
            assert_eq!(waits(), 1);
            // A third one enters and leaves meanwhile: the other one still waits.
            scope
                .spawn(|| {
                    Program::with(sites, |third| {
                        assert!(third.calls(107, TAKE, 0xa000));
                        assert_eq!(waits(), 2);
                        third.returns(110, 0xa000);
                        assert!(!third.calls(111, RELEASE, 0xa000));
                    });
                })
                .join()
                .unwrap();
            assert!(!program.calls(120, RELEASE, 0x1000));
            goes_on.wait();
        });
        assert_eq!(waits(), 0);
    });
    check(taken, [2, 1, 4, 2, 20, 19, 2, 0]);
}
