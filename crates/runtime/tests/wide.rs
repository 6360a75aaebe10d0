//! Threads of this process go to a wide CPU and come back. The hooks are made up: the test says how
//! many calls a thread has made, and whether anybody still decides.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dimmer_host::affinity;
use dimmer_policy::specialise::{Cpus, Domain, Settings, Stays};
use dimmer_processor::units::{CpuId, Nanos};
use dimmer_runtime::wide::{self, Begun, Event, Hooks, Specialising, Whose};

static HOLDS: AtomicBool = AtomicBool::new(true);
/// The set that is wide, plus one.
static SET: AtomicUsize = AtomicUsize::new(1);
static CALLS: AtomicU32 = AtomicU32::new(0);
static ROUNDS: AtomicU32 = AtomicU32::new(0);
static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());

/// What happened since the last time, without how long it took.
fn events() -> Vec<Event> {
    let events = std::mem::take(&mut *EVENTS.lock().unwrap());
    events.into_iter().filter(|event| !matches!(event, Event::WasWide(_))).collect()
}

fn wait_for(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

fn set(cpus: &[CpuId]) -> Cpus {
    Cpus::of(cpus.iter().map(|cpu| cpu.index() as usize))
}

/// Says that the calling thread sets its affinity to these.
fn chooses(cpus: &[CpuId]) {
    let set = set(cpus);
    wide::chooses(Whose::Own, (&raw const set).cast(), size_of_val(&set));
}

fn may() -> Vec<CpuId> {
    affinity::allowed().unwrap()
}

// One test, as a process specialises once and for good.
#[test]
#[expect(clippy::print_stdout, reason = "says that it was skipped")]
fn threads_go_to_wide_cpus_and_get_back_what_they_had() {
    let all = may();
    let [narrow @ .., last] = all.as_slice() else { return };
    if narrow.is_empty() {
        println!("SKIPPED: needs two CPUs, and this process may run on one");
        return;
    }
    let wide = [*last];
    assert_eq!((wide::begin(), wide::give_back()), (Begun::Passes, false), "nothing is wide yet");
    wide::specialise(Specialising {
        domain: Domain { all: set(&all), sets: vec![set(&wide), set(&all[..1])] },
        settings: Settings::hooked(Nanos::from_us(100)),
        hooks: Hooks {
            holds: || Some(HOLDS.load(Ordering::Relaxed)),
            wide_set: || SET.load(Ordering::Relaxed).checked_sub(1),
            are_kept_off: || false,
            look_again: || {
                ROUNDS.fetch_add(1, Ordering::Relaxed);
            },
            thread: || Some(7),
            calls: |_| CALLS.load(Ordering::Relaxed),
            note: |thread, event| {
                assert_eq!(thread, 7);
                EVENTS.lock().unwrap().push(event);
            },
        },
    });
    let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();

    // Within a call, it stays as long as that takes.
    assert_eq!(wide::begin(), Begun::Wide(own));
    assert_eq!(may(), wide);
    let rounds = ROUNDS.load(Ordering::Relaxed);
    assert!(wait_for(|| ROUNDS.load(Ordering::Relaxed) > rounds + 5), "the watch looks");
    assert_eq!((may(), wide::begin()), (wide.to_vec(), Begun::Wide(own)));
    assert_eq!(events(), [Event::Goes]);
    // After it, until the thread is quiet.
    assert!(wide::end_call().is_some());
    assert!(wait_for(|| may() == all), "{:?}", may());
    assert_eq!(events(), [Event::ComesBack]);

    // What starts meanwhile has the thread's own.
    assert_eq!(wide::begin(), Begun::Wide(own));
    assert!(wide::give_back());
    assert!(!wide::give_back());
    assert_eq!(may(), all);
    wide::end_call();

    // A thread goes on in another set in the middle of a call, and back if no CPU is wide.
    assert_eq!(wide::begin(), Begun::Wide(own));
    events();
    SET.store(2, Ordering::Relaxed);
    assert!(wait_for(|| may() == all[..1]), "{:?}", may());
    assert_eq!((wide::begin(), events()), (Begun::Wide(own), vec![]));
    SET.store(0, Ordering::Relaxed);
    assert!(wait_for(|| may() == all), "{:?}", may());
    assert_eq!(events(), [Event::ComesBack]);
    wide::end_call();
    let rounds = ROUNDS.load(Ordering::Relaxed);
    assert_eq!((wide::begin(), may()), (Begun::Passes, all.clone()));
    assert!(wait_for(|| ROUNDS.load(Ordering::Relaxed) > rounds + 1), "it is to ask again");
    SET.store(1, Ordering::Relaxed);

    // Who is pinned by itself stays.
    affinity::allow(narrow).unwrap();
    chooses(narrow);
    events();
    assert_eq!((wide::begin(), may()), (Begun::Passes, narrow.to_vec()));
    assert_eq!(events(), [Event::Stays(Stays::Pinned)]);
    chooses(&all);
    affinity::allow(&all).unwrap();

    // The kernel refuses a mask at an address with nothing, and the thread is still not pinned.
    wide::chooses(Whose::Own, std::ptr::without_provenance(8), 128);
    assert_eq!(wide::begin(), Begun::Wide(own));
    wide::end_call();
    assert!(wide::give_back());
    chooses(&all);
    events();

    // An affinity that others have set since is left.
    if let [one, _, ..] = narrow {
        assert_eq!(wide::begin(), Begun::Wide(own));
        wide::end_call();
        affinity::allow(&[*one]).unwrap();
        assert!(wait_for(|| events().contains(&Event::ComesBack)));
        assert_eq!(may(), [*one]);
        affinity::allow(&all).unwrap();
    }

    // A thread that ends there leaves no trace.
    events();
    std::thread::spawn(|| assert!(matches!(wide::begin(), Begun::Wide(_)))).join().unwrap();
    assert_eq!(events(), [Event::Goes]);

    // Once no decision is renewed, all come back, and none goes.
    assert_eq!(wide::begin(), Begun::Wide(own));
    HOLDS.store(false, Ordering::Relaxed);
    assert!(wait_for(|| may() == all), "{:?}", may());
    assert_eq!(wide::begin(), Begun::Passes);
    HOLDS.store(true, Ordering::Relaxed);

    // Nor before the process confines itself.
    assert_eq!(wide::begin(), Begun::Wide(own));
    wide::stop();
    assert_eq!((may(), wide::begin()), (all, Begun::Passes));
}
