//! CPUs that always run fastest and cores that stay awake, for C.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use dimmer_pace::{Awake, FastCoreError, FastCores};
use dimmer_runtime::CpuId;

use crate::call::quiet;

static DEDICATED: Mutex<Option<FastCores>> = Mutex::new(None);

/// The number of errno.h for an outcome; EAGAIN stands for a panic.
fn number(result: Option<Result<(), FastCoreError>>) -> c_int {
    match result {
        Some(Ok(())) => 0,
        Some(Err(FastCoreError::Empty)) => libc::EINVAL,
        Some(Err(FastCoreError::Dedicated { .. })) => libc::EBUSY,
        Some(Err(FastCoreError::NotDedicated)) => libc::ENODEV,
        Some(Err(FastCoreError::Affinity(_))) => libc::EPERM,
        Some(Err(_)) | None => libc::EAGAIN,
    }
}

/// Dedicates CPUs to threads that are to run fastest for a while: these CPUs run fastest until
/// dimmer_pace_release_fast(), where the machine takes requests (docs/pace.md), and threads can go
/// there (dimmer_pace_go_to_fast_core()).
///
/// Returns 0; EINVAL if no CPU is named, or `cpus` is NULL; EBUSY if CPUs are dedicated already;
/// EPERM if one does not exist, is offline, or is outside of the process's cpuset; EAGAIN if the
/// thread is about to end. Then nothing has changed.
///
/// # Safety
/// `cpus` is NULL or refers to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_pace_dedicate_fast(cpus: *const u32, count: usize) -> c_int {
    if cpus.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the caller guarantees it.
    let cpus = unsafe { std::slice::from_raw_parts(cpus, count) };
    number(quiet(|| {
        let mut dedicated = DEDICATED.lock().unwrap_or_else(PoisonError::into_inner);
        let cpus: Vec<CpuId> = cpus.iter().copied().map(CpuId::new).collect();
        *dedicated = Some(dimmer_pace::dedicate_fast(&cpus)?);
        Ok(())
    }))
}

/// Ends dimmer_pace_dedicate_fast(). Threads that are on one of the CPUs stay until they go home.
/// Without dedicated CPUs it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_release_fast() {
    quiet(|| drop(DEDICATED.lock().unwrap_or_else(PoisonError::into_inner).take()));
}

/// Moves the calling thread to the dedicated CPU with the fewest such threads, by its affinity,
/// until dimmer_pace_go_home(). May be nested: the thread is there already, then. Threads that it
/// creates meanwhile are there, too, and stay.
///
/// Returns 0; ENODEV if no CPU is dedicated; EPERM if the thread may not run there; EAGAIN if it is
/// about to end. Then the thread stays, and dimmer_pace_go_home() must not be called for it. Two
/// system calls, and the migration.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_go_to_fast_core() -> c_int {
    number(quiet(dimmer_pace::go_to_fast_core))
}

/// Ends the last dimmer_pace_go_to_fast_core() of this thread. At the end of the first, it goes
/// back, with the affinity that it had. If something else has changed its affinity meanwhile, the
/// thread keeps that.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_go_home() {
    quiet(dimmer_pace::go_home);
}

/// Has the kernel keep all cores awake, until dimmer_pace_sleep_again() gets the result, or the
/// process ends. Returns NULL without the right to do that, which only root has by default.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_stay_awake() -> *mut c_void {
    let awake = quiet(|| dimmer_pace::awake().ok().map(Box::new)).flatten();
    awake.map_or(std::ptr::null_mut(), |awake| Box::into_raw(awake).cast())
}

/// Ends dimmer_pace_stay_awake(). NULL does nothing.
///
/// # Safety
/// `awake` is the result of a dimmer_pace_stay_awake() that was not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_pace_sleep_again(awake: *mut c_void) {
    if !awake.is_null() {
        // SAFETY: it was made as a box of this type.
        let awake = unsafe { Box::from_raw(awake.cast::<Awake>()) };
        quiet(|| drop(awake));
    }
}
