//! Dedicated cores, and the ways to run work there.

use std::io::Write as _;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dimmer_host::affinity;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

use crate::job::{self, Large, Small};
use crate::lane::{DELEGATE, IDLE};
use crate::placement::{self, Placement};
use crate::shared::Shared;
use crate::slot::{self, HandOver};
use crate::start_error::StartError;
use crate::uncancelled::Uncancelled;
use crate::wait::{self, Patience};
use crate::wake_up::wake_up;
use crate::worker::Worker;
use crate::{confined, end, exclusion, fork, nap, signals};

/// Dedicated cores with a worker on each. Dropping it ends the workers.
///
/// Work that cannot be moved runs where it is: from a worker, from more than 64 threads at a time,
/// in a child of fork(2), when a worker has died.
#[derive(Debug)]
pub struct Cores {
    seats: Box<[Seat]>,
    /// Number of cores in use: the first of the list.
    used: AtomicUsize,
    /// Which core each thread's work goes to.
    placement: Placement,
    root: Root,
    /// The file that lets workers onto the cores, if other threads may not run there.
    entrance: Option<String>,
    patience: Patience,
    forks: u32,
    has_complained: AtomicBool,
}

/// A core that is dedicated, or may be later.
#[derive(Debug)]
struct Seat {
    cpu: CpuId,
    /// Started when the core is first used.
    worker: OnceLock<Worker>,
}

impl Cores {
    /// Starts a worker on each of these CPUs, and returns when all run there. Takes about a
    /// millisecond. The first call takes longer, since it measures how long it takes to wake a
    /// sleeping thread.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(root: &Root, cpus: &[CpuId]) -> Result<Self, StartError> {
        Self::start_spinning(root, cpus, wake_up(root, cpus, None))
    }

    /// Like [`Self::start`], with workers that spin for the time `spin` without work before they
    /// sleep, and for up to eight times that where work soon follows. Waking a worker takes a
    /// hundred times as long as a hand-off to a spinning one, but a spinning worker keeps the core
    /// from other threads.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_spinning(root: &Root, cpus: &[CpuId], spin: Duration) -> Result<Self, StartError> {
        let cores = Self::spare(root, cpus, None, spin)?;
        cores.use_cores(cpus.len())?;
        Ok(cores)
    }

    /// Cores of which none is in use yet; see [`Self::use_cores`]. If they belong to a cpuset,
    /// `entrance` is that of [`dimmer_host::cpusets::Dedicated`]. `spin`: as for
    /// [`Self::start_spinning`].
    pub(crate) fn spare(
        root: &Root,
        cpus: &[CpuId],
        entrance: Option<&str>,
        spin: Duration,
    ) -> Result<Self, StartError> {
        let allowed = affinity::allowed()?;
        if cpus.is_empty() {
            return Err(StartError::NoCores);
        }
        for (index, cpu) in cpus.iter().enumerate() {
            // A thread that has not entered the cpuset yet may not run there.
            if entrance.is_none() {
                affinity::check(root, *cpu)?;
            }
            if cpus[..index].contains(cpu) {
                return Err(StartError::Twice(*cpu));
            }
        }
        if allowed.iter().all(|cpu| cpus.contains(cpu)) {
            return Err(StartError::NoneLeft(allowed));
        }
        end::prepare();
        fork::count();
        wait::choose();
        signals::may_fence_all();
        let seat = |cpu: &CpuId| Seat { cpu: *cpu, worker: OnceLock::new() };
        Ok(Self {
            seats: cpus.iter().map(seat).collect(),
            used: AtomicUsize::new(0),
            placement: Placement::default(),
            root: root.clone(),
            entrance: entrance.map(str::to_owned),
            patience: Patience(spin),
            forks: fork::forks(),
            has_complained: AtomicBool::new(false),
        })
    }

    /// Sends work to the first `count` cores from now on, and starts the workers for them.
    ///
    /// # Errors
    /// If a worker cannot be pinned; work then goes to the cores before it.
    pub(crate) fn use_cores(&self, count: usize) -> Result<(), StartError> {
        let count = count.min(self.seats.len());
        if count > 1 {
            let all: Vec<CpuId> = self.seats.iter().map(|seat| seat.cpu).collect();
            self.placement.look(&self.root, &all);
        }
        // Workers go to their cores by themselves. The calling thread's affinity stays: `dimmer
        // run` may change it meanwhile.
        self.start_workers(count)
    }

    /// Likewise, to those among them that have a worker already: allocates nothing.
    pub(crate) fn use_started(&self, count: usize) {
        let started = self.seats.iter().take_while(|seat| seat.worker.get().is_some()).count();
        // Ordering: as in `start_workers`.
        self.used.store(count.min(started), Ordering::Release);
    }

    fn start_workers(&self, count: usize) -> Result<(), StartError> {
        let Some(_starting) = confined::Starting::begin() else {
            // Those that there were have ended, or are about to.
            return Ok(());
        };
        for (index, seat) in self.seats.iter().take(count).enumerate() {
            if seat.worker.get().is_none() {
                match Worker::start(&self.root, seat.cpu, self.entrance.as_deref(), self.patience) {
                    // Of two workers that were started at the same time, one ends at once.
                    Ok(worker) => drop(seat.worker.set(worker)),
                    Err(error) => {
                        // Ordering: as below, for the workers before this one.
                        self.used.store(index, Ordering::Release);
                        return Err(error);
                    }
                }
            }
        }
        // Ordering: pairs with the load in `len`: the workers of cores in use are visible.
        self.used.store(count, Ordering::Release);
        Ok(())
    }

    /// Keeps the process's other threads off the cores in use, and with them the threads and
    /// programs that they start. A thread that may run nowhere else stays. Another call undoes this
    /// for cores that are no longer used; for the others, only the end of the process does.
    pub fn keep_clear(&self) {
        let dedicated: Vec<CpuId> = self.cpus().collect();
        let workers: Vec<u32> =
            self.seats.iter().filter_map(|seat| seat.worker.get()?.shared.thread()).collect();
        exclusion::keep_off(&self.root, &dedicated, &workers);
    }

    /// Ends all workers, for good, and waits until their threads are gone, for some ten seconds at
    /// most. A worker that another thread's work keeps busy for 0.1 s ends later: that work may
    /// wait for the caller.
    pub(crate) fn retire(&self) {
        self.workers().for_each(Shared::retire);
        nap::briefly(|| self.workers().all(|worker| !worker.is_alive()));
        nap::until(|| self.workers().all(|worker| !worker.is_alive() || worker.is_busy()));
        signals::unlinked();
    }

    fn workers(&self) -> impl Iterator<Item = &Shared> {
        self.seats.iter().filter_map(|seat| Some(&*seat.worker.get()?.shared))
    }

    /// How long a thread that waits for its work spins.
    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }

    /// Whether the list of cores is `cpus`.
    pub(crate) fn are(&self, cpus: &[CpuId]) -> bool {
        self.seats.iter().map(|seat| seat.cpu).eq(cpus.iter().copied())
    }

    /// The CPUs in use, in the order given.
    pub fn cpus(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.seats[..self.len()].iter().map(|seat| seat.cpu)
    }

    /// Number of cores in use. If a program has named the cores, all are used, unless `use_cores`
    /// sets another number. If a server has, it sets the number.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // Ordering: pairs with the stores in `start_workers`.
        self.used.load(Ordering::Acquire)
    }

    /// Index of the core that the work of the calling thread goes to; `slot` is that thread's.
    /// Threads are spread over the cores, to near cores first.
    #[inline]
    pub(crate) fn usual(&self, slot: usize) -> usize {
        let count = self.len();
        if count > 1 { self.placement.choose(slot, count, slot::taken, placement::here) } else { 0 }
    }

    /// Runs a closure on a dedicated core, on the worker's own stack, and waits for it. Returns its
    /// result; a panic of the closure continues here. Costs a cache-line round trip; closures and
    /// results of up to 48 bytes are passed in the line.
    ///
    /// ```
    /// use dimmer_runtime::{Cores, CpuId, Root};
    ///
    /// let Ok(cores) = Cores::start(&Root::live(), &[CpuId::new(1)]) else { return };
    /// let name = String::from("dimmer");
    /// // The closure borrows, as this thread waits for it.
    /// assert_eq!(cores.delegate(|| name.len()), 6);
    /// // It runs on another thread, with that thread's storage.
    /// let here = std::thread::current().id();
    /// assert!(cores.delegate(|| std::thread::current().id()) != here);
    /// ```
    ///
    /// What the closure has and returns goes to another thread, so it must be [`Send`]:
    ///
    /// ```compile_fail,E0277
    /// fn count(cores: &dimmer_runtime::Cores, shared: &std::rc::Rc<u32>) -> u32 {
    ///     cores.delegate(|| **shared)
    /// }
    /// ```
    pub fn delegate<T: Send, F: FnOnce() -> T + Send>(&self, work: F) -> T {
        self.try_delegate(work).unwrap_or_else(|work| work())
    }

    /// Like [`Self::delegate`], but returns the closure if it cannot be moved. For callers that
    /// must not have a frame of this crate below the closure then.
    ///
    /// # Errors
    /// The closure, if it has to run here.
    pub fn try_delegate<T: Send, F: FnOnce() -> T + Send>(&self, work: F) -> Result<T, F> {
        let work = match Small::new(work) {
            Ok(small) => return self.hand_over(small).map_err(Small::into_inner),
            Err(work) => work,
        };
        let mut large = Large::new(work);
        let is_moved = match Small::new(large.pointer()) {
            Ok(pointer) => self.hand_over(pointer).is_ok(),
            Err(_) => false,
        };
        if is_moved {
            // SAFETY: it has run; a panic would have continued.
            return Ok(unsafe { large.value() });
        }
        // SAFETY: it has not run.
        Err(unsafe { large.into_work() })
    }

    /// Starts a closure on a dedicated core, while the caller goes on. Each thread can have one per
    /// core at a time; another one runs in place.
    ///
    /// ```
    /// use dimmer_runtime::{Cores, CpuId, Root};
    ///
    /// let Ok(cores) = Cores::start(&Root::live(), &[CpuId::new(1)]) else { return };
    /// let sum = cores.begin(|| (1..=1000).sum::<u64>());
    /// let product: u64 = (1..=10).product();
    /// assert_eq!((sum.join(), product), (500_500, 3_628_800));
    /// ```
    pub fn begin<T, F>(&self, work: F) -> Pending<'_, T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let outcome = Arc::new(Mutex::new(None));
        let give = Arc::clone(&outcome);
        let work = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            *give.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }) as Work;
        let lane = match (Small::new(work), self.lane()) {
            (Ok(small), Some((worker, slot))) => {
                let _busy = HandOver::begin();
                let lane = worker.lane(slot);
                let number = lane.begun.get() + 1;
                lane.begun.set(number);
                // SAFETY: the lane belongs to this thread and is idle; the closure borrows nothing.
                unsafe { small.ask(lane) };
                worker.ring();
                Some((worker, slot, number))
            }
            (Ok(small), None) => {
                small.run_here();
                None
            }
            (Err(work), _) => {
                work();
                None
            }
        };
        Pending { cores: self, lane, outcome, not_send: PhantomData }
    }

    /// The worker with the index `core`, if the core is in use and the worker has not ended and is
    /// not held up.
    #[inline]
    pub(crate) fn worker(&self, core: usize) -> Option<&Shared> {
        let worker = self.seats.get(..self.len())?.get(core)?.worker.get()?;
        Some(&*worker.shared).filter(|worker| !worker.is_lost())
    }

    /// Whether this process is a child of the one that started the workers.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        fork::forks() != self.forks
    }

    /// The calling thread's slot, and the worker that it hands work to: threads are spread over
    /// workers.
    fn pick(&self) -> Option<(&Shared, usize)> {
        if self.is_inherited() {
            return None;
        }
        let slot = slot::own()?;
        Some((self.worker(self.usual(slot))?, slot))
    }

    /// Like [`Self::pick`], if no work of the thread is in progress there.
    pub(crate) fn lane(&self) -> Option<(&Shared, usize)> {
        self.pick().filter(|(worker, slot)| worker.lane(*slot).word.value() == IDLE)
    }

    /// `Err`: it has to run here.
    fn hand_over<T, F: FnOnce() -> T>(&self, small: Small<F, T>) -> Result<T, Small<F, T>> {
        let Some((worker, slot)) = self.lane() else { return Err(small) };
        let lane = worker.lane(slot);
        let busy = HandOver::begin();
        // SAFETY: the lane belongs to this thread and is idle. This function waits until it is idle
        // again.
        unsafe { small.ask(lane) };
        worker.ring();
        let Some(word) = self.wait(worker, slot) else {
            // SAFETY: the worker has not started it, and will not.
            let work = unsafe { Small::<F, T>::take_back(lane) };
            drop(busy);
            return Err(work);
        };
        // SAFETY: the worker has left this word.
        let result = unsafe { job::result(lane, word) };
        drop(busy);
        match result {
            Ok(value) => Ok(value),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Waits until a call is done. `None` if the worker has ended, or is held up, without having
    /// started it.
    fn wait(&self, worker: &Shared, slot: usize) -> Option<u32> {
        let lane = worker.lane(slot);
        loop {
            if let Some(word) = lane.word.wait_while(DELEGATE, self.patience) {
                return Some(word);
            }
            if worker.is_alive() {
                if worker.give_back(slot, DELEGATE) {
                    return None;
                }
                continue;
            }
            // Ordering: pairs with the store in `retire`, which is before the worker's end.
            let has_retired = worker.must_end.load(Ordering::SeqCst);
            if !has_retired && !self.has_complained.swap(true, Ordering::Relaxed) {
                let cpu = worker.cpu;
                let _uncancelled = Uncancelled::begin();
                let _ = writeln!(
                    std::io::stderr(),
                    "dimmer: the worker on cpu {cpu} has ended; work runs where it is from now on"
                );
            }
            if worker.is_at(slot) && lane.word.value() == DELEGATE {
                resume_unwind(Box::new("the worker ended in the middle of this work".to_owned()));
            }
            return Some(lane.word.value()).filter(|word| *word != DELEGATE);
        }
    }
}

/// The work that [`Cores::begin`] hands over.
type Work = Box<dyn FnOnce() + Send>;

/// A closure that runs on a dedicated core, or has run. Dropping it waits for its end.
///
/// It belongs to the thread that has started the closure:
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<dimmer_runtime::Pending<'static, ()>>();
/// ```
#[derive(Debug)]
pub struct Pending<'a, T> {
    cores: &'a Cores,
    /// The worker, the slot, and the number of the call in its lane: once it is done, the lane may
    /// be used for others.
    lane: Option<(&'a Shared, usize, u64)>,
    outcome: Arc<Mutex<Option<std::thread::Result<T>>>>,
    // The lane belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl<T> Pending<'_, T> {
    /// Waits for the closure, and returns its result. A panic of the closure continues here.
    ///
    /// # Panics
    /// If the closure did.
    pub fn join(mut self) -> T {
        self.wait();
        match self.take() {
            Some(Ok(value)) => value,
            Some(Err(panic)) => resume_unwind(panic),
            None => resume_unwind(Box::new("the work was lost with its worker".to_owned())),
        }
    }

    fn take(&self) -> Option<std::thread::Result<T>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn wait(&mut self) {
        let Some((worker, slot, number)) = self.lane.take() else { return };
        let lane = worker.lane(slot);
        if lane.begun.get() != number {
            return;
        }
        match self.cores.wait(worker, slot) {
            // The outcome was stored before the word.
            Some(_) => {}
            None => {
                // SAFETY: the worker has not started it, and will not; `begin` has stored this kind
                // of closure there.
                let work = unsafe { Small::<Work, ()>::take_back(lane) };
                work.run_here();
            }
        }
    }
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        self.wait();
        if let Some(Err(panic)) = self.take()
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}
