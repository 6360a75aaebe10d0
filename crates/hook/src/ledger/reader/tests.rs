//! Ledgers with any content, ledgers that are truncated meanwhile, and reading what was written.

use super::*;
use crate::ledger::OwnLedger;
use crate::ledger::layout::{MAGIC, OBJECTS_AT, SLOT_BYTES, VERSION};

/// Numbers that look random, the same each time (Marsaglia, xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    /// Bytes of the kinds that break readers: random, all ones, all zeros, small numbers.
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let kind = self.below(4);
        let mut byte = |index: usize| match kind {
            0 => u8::try_from(self.next() % 256).unwrap(),
            1 => 0xff,
            2 => 0,
            _ => u8::from(index.is_multiple_of(4)) * u8::try_from(self.next() % 9).unwrap(),
        };
        (0..length).map(&mut byte).collect()
    }
}

/// Does everything once that the observer does with a ledger.
fn use_all(ledger: &Ledger) {
    let Some(head) = ledger.head() else { return };
    assert!(head.overhead().inside <= MOST_OVERHEAD);
    let (objects, sites) = (ledger.objects(), ledger.sites());
    // These counts may be of another head, as the file changes meanwhile.
    assert!(objects.len() <= OBJECTS && sites.len() <= SITES);
    for object in objects {
        assert!(object.path.as_os_str().len() <= LONGEST_TEXT);
        assert!(!object.problem.contains(char::is_control), "{:?}", object.problem);
    }
    let mut look = Look::default();
    for thread in ledger.threads().take(20) {
        thread.look(head.sites(), &mut look);
        assert!(look.calls().count() <= head.sites());
        let mut taken = 0;
        thread.drain_seen(&look, |call| {
            assert!(call.begin != 0 && call.end >= call.begin);
            taken += 1;
        });
        assert!(taken <= RECORDS);
        thread.set_period(7);
    }
    ledger.decide(head.sites(), true);
    ledger.decide(usize::MAX, true);
    ledger.use_cores(usize::MAX);
    ledger.widen(Some(usize::MAX));
}

#[test]
fn a_process_reads_which_set_of_cpus_is_wide() {
    let directory = tempfile();
    let own = OwnLedger::create(&directory.0).unwrap();
    let ledger = Ledger::open(own.path()).unwrap();
    assert_eq!(own.orders().wide_set(), None);
    for set in [Some(0), Some(7), None] {
        ledger.widen(set);
        assert_eq!(own.orders().wide_set(), set);
    }
    // There is no such set.
    ledger.widen(Some(usize::MAX));
    assert_eq!(own.orders().wide_set(), None);
}

#[test]
fn any_bytes_can_be_read() {
    let directory = tempfile();
    let path = OwnLedger::create(&directory.0).unwrap().path().to_path_buf();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..300 {
        let ledger = Ledger::open(&path).unwrap();
        for _ in 0..random.below(8) {
            let at = match random.below(4) {
                0 => VERSION_AT + 4,
                1 => OBJECTS_AT + random.below(OBJECTS * OBJECT_BYTES),
                2 => SITES_AT + random.below(SITES * SITE_BYTES),
                _ => slot_at(random.below(9)) + random.below(SLOT_BYTES),
            };
            let length = 1 + random.below(5000);
            // The first bytes stay, so that the file is still a ledger.
            let bytes = random.bytes(length);
            ledger.file.write_all_at(&bytes, at as u64).unwrap();
        }
        use_all(&ledger);
    }
}

#[test]
fn a_ledger_may_be_cut_at_any_moment() {
    let directory = tempfile();
    let own = OwnLedger::create(&directory.0).unwrap();
    let first = own.reserve_slot().unwrap();
    let file = File::options().write(true).open(own.path()).unwrap();
    file.write_all_at(&1_u32.to_le_bytes(), (slot_at(first.number) + CLAIMED) as u64).unwrap();
    let head = std::fs::read(own.path()).unwrap();
    let path = own.path().to_path_buf();
    // The mappings of `own` and `first` must not be touched once the file is shorter.
    std::mem::forget((own, first));
    let ledger = Ledger::open(&path).unwrap();
    assert_eq!(ledger.threads().count(), 1);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(88_172_645_463_325_252);
            for _ in 0..2000 {
                file.set_len(random.next() % (head.len() as u64 + 1)).unwrap();
                file.write_all_at(&head, 0).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) {
            use_all(&ledger);
        }
    });
    file.set_len(100).unwrap();
    use_all(&ledger);
    assert!(ledger.head().is_some() && ledger.threads().next().is_none());
    file.set_len(0).unwrap();
    assert!(ledger.head().is_none());
}

#[test]
fn only_files_of_this_user_that_are_ledgers_are_opened() {
    let directory = tempfile();
    let own = OwnLedger::create(&directory.0).unwrap();
    let place = |name: &str| directory.0.join(name);
    std::os::unix::fs::symlink("/dev/zero", place("zero.ledger")).unwrap();
    std::os::unix::fs::symlink(own.path(), place("link.ledger")).unwrap();
    let pipe = std::ffi::CString::new(place("pipe.ledger").to_str().unwrap()).unwrap();
    // SAFETY: a path that ends with zero.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    std::fs::write(place("empty.ledger"), "").unwrap();
    let mut old = MAGIC.to_le_bytes().to_vec();
    old.extend((VERSION - 1).to_le_bytes());
    std::fs::write(place("old.ledger"), old).unwrap();
    std::fs::create_dir(place("directory.ledger")).unwrap();
    let names = Ledger::all_in(&directory.0).unwrap();
    assert_eq!(names.len(), 7);
    let opened: Vec<PathBuf> =
        names.into_iter().filter(|path| Ledger::open(path).is_ok()).collect();
    assert_eq!(opened, [own.path()]);
}

#[test]
#[expect(clippy::print_stdout, reason = "tests that cannot run here say so")]
fn what_a_process_wrote_is_read_and_given_back_once_it_has_no_mapping() {
    let directory = tempfile();
    let own = OwnLedger::create(&directory.0).unwrap();
    let object = own.add_objects(&[(0x1000, Path::new("/lib/\u{1b}[31mred.so"))]).unwrap().start;
    own.set_problem(object, "no \u{1b}[2J room\n");
    let mut none = std::iter::empty();
    assert_eq!(own.add_sites(object, &[16, 32], false, &mut none).unwrap(), 0..2);
    assert_eq!(own.add_sites(object, &[48], false, &mut none).unwrap(), 2..3);
    let ledger = Ledger::open(own.path()).unwrap();
    let [object] = &ledger.objects()[..] else { panic!("{:?}", ledger.objects()) };
    // The path is unchanged, since it opens the file; code that prints it removes control
    // characters.
    assert_eq!((object.base, object.path.to_str()), (0x1000, Some("/lib/\u{1b}[31mred.so")));
    assert_eq!(object.problem, "no \u{fffd}[2J room\u{fffd}");
    let addresses: Vec<u64> = ledger.sites().iter().map(|site| site.address).collect();
    assert_eq!(addresses, [16, 32, 48]);
    // Some kilobytes, though the file has room for much more.
    assert!(ledger.memory() <= 5 * 4096, "{}", ledger.memory());
    assert!(!ledger.is_abandoned());
    drop(own);
    if !ledger.is_abandoned() {
        println!("SKIPPED: the kernel gives no leases for files of {}", directory.0.display());
    }
}

#[test]
fn counters_are_reserved_for_functions_that_come_later() {
    let directory = tempfile();
    let own = OwnLedger::create(&directory.0).unwrap();
    let slot: &'static _ = Box::leak(Box::new(own.reserve_slot().unwrap()));
    let addresses: Vec<u64> = (1..=5000).collect();
    own.add_sites(0, &addresses, false, &mut [slot].into_iter()).unwrap();
    let last = slot.counters().wrapping_add(4999 * 4).cast::<u32>();
    // SAFETY: the last counter, which was just reserved.
    unsafe { last.write(77) };
    let ledger = Ledger::open(own.path()).unwrap();
    let file = File::options().write(true).open(own.path()).unwrap();
    file.write_all_at(&1_u32.to_le_bytes(), (slot_at(slot.number) + CLAIMED) as u64).unwrap();
    let mut look = Look::default();
    ledger.threads().next().unwrap().look(5000, &mut look);
    assert_eq!(look.calls().last(), Some(77));
    let many: Vec<u64> = (1..=SITES as u64).collect();
    let refused = own.add_sites(0, &many, false, &mut [slot].into_iter());
    assert!(matches!(refused, Err(LedgerError::Full { .. })), "{refused:?}");
    // The functions that were noted are still there.
    assert_eq!(ledger.sites().len(), 5000);
}

#[test]
fn a_run_that_has_enough_ledgers_gets_no_more() {
    let directory = tempfile();
    let own = OwnLedger::create(&directory.0).unwrap();
    Ledger::limit_run(&directory.0, true).unwrap();
    let refused = own.reserve_slot().map(drop).unwrap_err();
    assert!(matches!(refused, LedgerError::NoRoom(NoRoom::Run)), "{refused:?}");
    assert!(OwnLedger::create(&directory.0).is_err());
    let names = Ledger::names_in(&directory.0).unwrap();
    assert_eq!(names.ledgers, [own.path()]);
    let [(reason, NoRoom::Run)] = &names.reasons[..] else { panic!("{names:?}") };
    assert!(Names::are_of_run(reason) && Names::are_of_run(own.path()));
    assert!(Names::are_of_run(Path::new("learned-12")) && Names::are_of_run(Path::new("graph")));
    assert!(!Names::are_of_run(Path::new("thesis.txt")));
    Ledger::limit_run(&directory.0, false).unwrap();
    own.reserve_slot().unwrap();
}

/// A directory that is removed when this is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn tempfile() -> Temporary {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("test-of-ledgers-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir(&path).unwrap();
    Temporary(path)
}
