//! The functions by which the program allocates: the C library's, or others that replace them.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};

use crate::loaded_at;

/// What starting a thread may call.
const ALLOCATING: [&CStr; 7] =
    [c"malloc", c"calloc", c"realloc", c"free", c"memalign", c"aligned_alloc", c"posix_memalign"];

/// Whether these functions may call hooked ones, which are in the files at these base addresses.
/// The C library's call none of other files. Functions that replace them may call any.
pub(crate) fn may_call(hooked: &BTreeSet<u64>) -> bool {
    let Some(own) = base_of(c"gnu_get_libc_version") else { return true };
    let is_replaced = || ALLOCATING.iter().any(|name| base_of(name) != Some(own));
    !hooked.is_empty() && (hooked.contains(&own) || is_replaced())
}

/// The base address of the file whose function the program calls by this name.
fn base_of(name: &CStr) -> Option<u64> {
    // SAFETY: the name ends with a zero byte.
    let address: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    u64::try_from(loaded_at(address.cast())?.dli_fbase.addr()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_functions_call_none_of_other_files() {
        let library = base_of(c"gnu_get_libc_version").unwrap();
        assert!(ALLOCATING.iter().all(|name| base_of(name) == Some(library)));
        assert!(!may_call(&BTreeSet::new()));
        assert!(!may_call(&BTreeSet::from([1])));
        assert!(may_call(&BTreeSet::from([1, library])));
        assert_eq!(base_of(c"no_function_is_called_this"), None);
    }
}
