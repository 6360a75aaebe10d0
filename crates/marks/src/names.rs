//! The marks of a program: the texts that it passes, the names that these make, and their numbers.

use std::any::type_name_of_val;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};

use dimmer_policy::phases::{Mark, MarkId};

/// The two texts that a program passes at a mark: the name of its function, and the position in it.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Texts of C; the position may be null. Both must stay valid during the call that gets them.
    C(*const c_char, *const c_char),
    /// Texts of Rust.
    Rust(&'static str, &'static str),
    /// The entry of a function.
    Entry(&'static str),
}

/// The addresses of the texts. Equal keys are the same mark, as far as the texts are constant.
pub(crate) type Key = [usize; 2];

impl Place {
    #[inline]
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::C(function, position) => [function.addr(), position.addr()],
            Self::Rust(function, position) => [function.as_ptr().addr(), position.as_ptr().addr()],
            Self::Entry(function) => [function.as_ptr().addr(), 0],
        }
    }

    /// The mark (paper 004 §4.1). What the text formats could not hold is replaced.
    pub(crate) fn mark(&self) -> Mark {
        let text = |text: *const c_char| {
            // SAFETY: of a `Place::C`, whose maker has passed texts that end with a zero.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
        };
        let (function, position) = match self {
            Self::C(function, position) => (text(*function).unwrap_or_default(), text(*position)),
            Self::Rust(function, position) => ((*function).into(), Some((*position).into())),
            Self::Entry(function) => ((*function).into(), None),
        };
        let name = match position {
            Some(position) => format!("{function} [{position}]"),
            None => function.into_owned(),
        };
        Mark::new(&name).unwrap_or_else(|_| replaced(&name))
    }

    /// Whether the program cannot change the texts, so that their addresses stand for them.
    pub(crate) fn is_constant(&self) -> bool {
        match self {
            Self::C(function, position) => is_constant(*function) && is_constant(*position),
            Self::Rust(..) | Self::Entry(_) => true,
        }
    }
}

/// The mark whose name is `name` without what no name may have.
fn replaced(name: &str) -> Mark {
    let kept = |char: char| if char == '"' || char.is_control() { '?' } else { char };
    let text: String = name.chars().map(kept).collect();
    let text = text.replace(" -> ", " => ");
    let text = text.trim().trim_end_matches(" ->");
    // What is left can only be empty.
    let unnamed = || Mark::new("?").unwrap_or_else(|_| unreachable!("`?` is a name"));
    Mark::new(text).unwrap_or_else(|_| unnamed())
}

/// Whether a text lies where a loaded file cannot be written: in a segment for reading, or in data
/// that only the loader writes. True of null.
fn is_constant(text: *const c_char) -> bool {
    struct Wanted {
        address: usize,
        is_found: bool,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        wanted: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid description.
        let info = unsafe { &*info };
        // SAFETY: `is_constant` passes its own variable.
        let wanted = unsafe { &mut *wanted.cast::<Wanted>() };
        let base = usize::try_from(info.dlpi_addr).unwrap_or(0);
        // SAFETY: the loader keeps this number of headers there.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        wanted.is_found = headers.iter().any(|header| {
            let is_fixed = header.p_type == libc::PT_GNU_RELRO
                || header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
            let start = base.wrapping_add(usize::try_from(header.p_vaddr).unwrap_or(0));
            let bytes = usize::try_from(header.p_memsz).unwrap_or(0);
            is_fixed && wanted.address.wrapping_sub(start) < bytes
        });
        wanted.is_found.into()
    }
    let mut wanted = Wanted { address: text.addr(), is_found: false };
    if text.is_null() {
        return true;
    }
    // SAFETY: `look` gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut wanted).cast()) };
    wanted.is_found
}

/// The name of the function around `inner`, which is defined in it.
#[must_use]
pub fn function_of<T>(inner: T) -> &'static str {
    let name = type_name_of_val(&inner);
    let outer = name.rsplit_once("::").map_or(name, |(outer, _)| outer);
    outer.strip_suffix("::{{closure}}").unwrap_or(outer)
}

/// The marks that the threads of a program have passed, with their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    ids: BTreeMap<Mark, MarkId>,
    marks: Vec<Mark>,
}

impl Names {
    /// The number of a mark; a new one if it was not passed yet.
    pub(crate) fn id(&mut self, mark: Mark) -> MarkId {
        if let Some(id) = self.ids.get(&mark) {
            return *id;
        }
        let id = MarkId::new(u32::try_from(self.marks.len()).unwrap_or(u32::MAX));
        self.ids.insert(mark.clone(), id);
        self.marks.push(mark);
        id
    }

    /// All marks, by their numbers.
    pub(crate) fn marks(&self) -> &[Mark] {
        &self.marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_called_by_its_texts() {
        let name = |function: &CStr, position: Option<&CStr>| {
            let position = position.map_or(std::ptr::null(), CStr::as_ptr);
            Place::C(function.as_ptr(), position).mark().name().to_owned()
        };
        assert_eq!(name(c"run", Some(c"a.c:7")), "run [a.c:7]");
        assert_eq!(name(c"CPU Work", None), "CPU Work");
        // C++ functions are called like this.
        assert_eq!(name(c"operator->", Some(c"a.cc:7")), "operator-> [a.cc:7]");
        assert_eq!(name(c"say \"x\" -> y\n", None), "say ?x? => y?");
        assert_eq!(name(c" ", None), "?");
        assert_eq!(Place::C(std::ptr::null(), std::ptr::null()).mark().name(), "?");
        assert_eq!(Place::Entry("ns::f(int)").mark().name(), "ns::f(int)");
    }

    #[test]
    fn texts_that_the_program_may_change_are_not_constant() {
        let own = c"text".to_owned();
        assert!(is_constant(c"text".as_ptr()) && is_constant(std::ptr::null()));
        assert!(!is_constant(own.as_ptr()));
        assert!(!Place::C(c"f".as_ptr(), own.as_ptr()).is_constant());
    }

    #[test]
    fn equal_marks_have_one_number() {
        let mut names = Names::default();
        let mark = |name| Mark::new(name).unwrap();
        assert_eq!(names.id(mark("a")), MarkId::new(0));
        assert_eq!(names.id(mark("b")), MarkId::new(1));
        assert_eq!(names.id(mark("a")), MarkId::new(0));
        assert_eq!(names.marks(), [mark("a"), mark("b")]);
    }

    #[test]
    fn the_function_around_a_mark_is_found() {
        fn here() {}
        let of = function_of(here);
        assert!(of.ends_with("names::tests::the_function_around_a_mark_is_found"), "{of}");
    }
}
