//! Sections that begin and end with functions (`dimmer run --boost --section`). The library that
//! observes locks decides what happens there; it is loaded beside this one, and found by the names
//! of its functions.

use std::ffi::{CStr, c_char, c_void};

use dimmer_hook::{Hooks, Watcher};

type Begin = extern "C" fn(*const *const c_char);
type Called = extern "C" fn(u32, usize, u32) -> u32;
type Ended = extern "C" fn(usize);

/// Has the hooks report the calls of functions, if the environment asks for that. `None`: it does
/// not, or the other library is not there.
pub(crate) fn prepare(hooks: &mut Hooks, environment: *const *const c_char) -> Option<()> {
    std::env::var_os(dimmer_hook::SECTIONS)?;
    let begin = find(c"dimmer_boost_begin")?;
    let called = find(c"dimmer_boost_called")?;
    let returned = find(c"dimmer_boost_returned")?;
    let left = find(c"dimmer_boost_left")?;
    // SAFETY: what has this name has this type; the other library comes from the same build.
    let begin = unsafe { std::mem::transmute::<*mut c_void, Begin>(begin) };
    // SAFETY: likewise.
    let called = unsafe { std::mem::transmute::<*mut c_void, Called>(called) };
    // SAFETY: likewise.
    let returned = unsafe { std::mem::transmute::<*mut c_void, Ended>(returned) };
    // SAFETY: likewise.
    let left = unsafe { std::mem::transmute::<*mut c_void, Ended>(left) };
    begin(environment);
    dimmer_hook::never_time();
    if hooks.watch(Watcher { called, returned, left }).is_err() {
        hooks.refuse("calls cannot be watched: the processor has neither XSAVE nor XSAVEC");
    }
    Some(())
}

fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a lookup of a name, ended by zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
