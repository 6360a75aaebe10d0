//! Sums of sections between made-up readings, and what the kernel of this machine counts.

use super::*;

fn reading(at: u64, usage: [u64; 3], counts: [u64; NUMBER]) -> Reading {
    Reading { at, usage, counts, uncounted: 50, is_counted: true }
}

fn empty() -> Reading {
    reading(900, [0; 3], [10, 20, 0, 1, 30])
}

#[track_caller]
fn check(begin: Reading, end: Reading, expected: &[(Measure, u64)]) {
    let found = measured(&begin, &end, &empty());
    let mut sums = [0; MEASURES];
    expected.iter().for_each(|(measure, sum)| sums[*measure as usize] = *sum);
    assert_eq!(found, sums);
}

#[test]
fn a_section_has_what_was_counted_in_it_without_what_an_empty_one_has() {
    use Measure as M;
    let begin = reading(1000, [5, 2, 1], [100, 100, 0, 7, 1000]);
    let end = reading(6000, [8, 2, 1], [12_110, 6120, 400, 8, 9030]);
    let always = [(M::Sampled, 1), (M::Time, 5000), (M::Faults, 3)];
    let counted = [
        (M::Counted, 1),
        (M::Cycles, 12_000),
        (M::Reference, 6000),
        (M::Stalled, 400),
        (M::Misses, 0),
        (M::Instructions, 8000),
    ];
    let steady = [(M::SteadyTime, 5000), (M::SteadyCycles, 12_000)];
    check(begin, end, &[&always[..], &counted, &steady].concat());
    // The thread slept, or lost its CPU: no clock follows from the time.
    let slept = Reading { usage: [8, 4, 1], ..end };
    check(begin, slept, &[&always[..], &[(M::Sleeps, 2)], &counted].concat());
    let lost = Reading { usage: [8, 2, 3], ..end };
    check(begin, lost, &[&always[..], &counted].concat());
    // Others had the counters meanwhile, or have them at the end.
    check(begin, Reading { uncounted: 51, ..end }, &always);
    check(begin, Reading { is_counted: false, ..end }, &always);
    check(Reading { is_counted: false, ..begin }, end, &always);
    // Less than an empty section.
    let short = [(M::Sampled, 1), (M::Short, 1), (M::Counted, 1)];
    check(begin, begin, &short);
}

#[test]
fn half_of_the_sections_that_may_be_measured_are() {
    let state = Cell::new(0);
    let heads = (0..10_000).filter(|_| coin(&state)).count();
    assert!((4800..5200).contains(&heads), "{heads}");
    // After each outcome, both follow.
    let turns: Vec<bool> = (0..1000).map(|_| coin(&state)).collect();
    let pairs = turns.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((400..600).contains(&pairs), "{pairs}");
}

#[test]
fn events_that_there_are_not_have_their_reasons() {
    let pages = [const { AtomicUsize::new(0) }; NUMBER];
    let nothing = Event { name: "nothing", kind: u32::MAX, config: 0 };
    let opened = open_events(&[nothing; NUMBER], &pages);
    assert_eq!(opened.events, 0);
    let reasons = opened.refused.to_le_bytes();
    assert!(reasons[..NUMBER].iter().all(|why| ![0, NOT_READABLE].contains(why)), "{reasons:?}");
    assert!(pages.iter().all(|page| page.load(Ordering::Relaxed) == 0));
    // What the kernel counts has no counter that a program may read.
    let faults = Event { name: "page-faults", kind: 1, config: 2 };
    let opened = open_events(&[faults; NUMBER], &pages);
    assert_eq!(opened.events, 0);
    assert!(opened.refused.to_le_bytes()[..NUMBER].iter().all(|why| *why != 0));
}

#[test]
fn page_faults_of_a_thread_are_counted_exactly() {
    const PAGES: usize = 64;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let (null, bytes) = (std::ptr::null_mut(), PAGES * own_event::BYTES);
    // SAFETY: a new mapping.
    let fresh = unsafe { mmap_anonymous(null, bytes, access, MapFlags::PRIVATE) }.unwrap();
    // SAFETY: it is as long.
    unsafe { madvise(fresh, bytes, Advice::LinuxNoHugepage) }.unwrap();
    // What the reading itself touches.
    let _ = usage();
    let before = usage();
    for at in 0..PAGES {
        // SAFETY: within the mapping.
        let place = unsafe { fresh.cast::<u8>().add(at * own_event::BYTES) };
        // SAFETY: likewise.
        unsafe { place.write_volatile(1) };
    }
    let after = usage();
    assert_eq!(after[0] - before[0], PAGES as u64);
    std::thread::sleep(std::time::Duration::from_millis(1));
    assert_eq!(usage()[1] - after[1], 1, "one sleep");
}
