//! Which functions are the outermost around others.

use dimmer_scan::{Callers, scan};

use crate::elf::{CODE, Library};

/// A function of 16 bytes that calls the place `distance` bytes after its start. The call comes
/// after an instruction of five bytes that can be displaced.
fn calls(distance: i32) -> Vec<u8> {
    let mut code = vec![0x0f, 0x1f, 0x44, 0x00, 0x00, 0xe8];
    code.extend((distance - 10).to_le_bytes());
    code.push(0xc3);
    code.resize(16, 0xcc);
    code
}

/// A function that returns.
fn leaf() -> Vec<u8> {
    let mut code = vec![0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3];
    code.resize(16, 0xcc);
    code
}

/// The starts of the outermost functions around the one that starts there.
#[track_caller]
fn outermost(library: &Library, function: u64) -> Vec<u64> {
    let bytes = library.bytes();
    let scan = scan(&bytes).unwrap();
    let callers = Callers::read(&bytes, &scan).unwrap();
    let function = scan.at(CODE + function).unwrap();
    let found = callers.outermost(function, &scan);
    found.iter().map(|function| function.addresses.start - CODE).collect()
}

fn three() -> Vec<u8> {
    [calls(16), calls(16), leaf()].concat()
}

#[test]
fn private_functions_are_gone_through_to_the_first() {
    let library = Library::new(three()).frame(0, 11).frame(16, 11).frame(32, 6);
    assert_eq!(outermost(&library, 32), [0]);
    assert_eq!(outermost(&library, 0), [0]);
}

#[test]
fn what_other_files_may_call_is_outermost() {
    let library = Library::new(three()).frame(0, 11).function("f", 16, 11).frame(32, 6);
    assert_eq!(outermost(&library, 32), [16]);
}

#[test]
fn main_is_none_and_its_callees_are_their_own() {
    let library = Library::new(three()).function("main", 0, 11).frame(16, 11).frame(32, 6);
    assert_eq!(outermost(&library, 32), [16]);
}

#[test]
fn all_callers_must_be_hookable() {
    // The first starts with its call.
    let first = [&[0xe8, 11, 0, 0, 0, 0xc3][..], &[0xcc; 10]].concat();
    let library =
        Library::new([first, calls(16), leaf()].concat()).frame(0, 6).frame(16, 11).frame(32, 6);
    assert_eq!(outermost(&library, 32), [16]);
    let two = [calls(32), calls(16), leaf()].concat();
    let library = Library::new(two).frame(0, 11).frame(16, 11).frame(32, 6);
    assert_eq!(outermost(&library, 32), [0, 16]);
}
