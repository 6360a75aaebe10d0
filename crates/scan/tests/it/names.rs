//! Names from debug files and from static archives.

use dimmer_scan::{Archive, Code, Names, debug_link, embedded_debug_file, scan, soname};

use crate::elf::{CODE, Kind, Library};

/// Two functions of 48 bytes each with different bytes, with a call in the middle.
fn code() -> Vec<u8> {
    let one = |with: u8| {
        [[0x04, with].repeat(10), vec![0xe8, 1, 2, 3, with], [0x0c, with].repeat(11), vec![0xc3]]
    };
    [one(1).concat(), one(2).concat()].concat()
}

/// The offset of the call's distance in the first function, and the type of a relocation for it.
const CALL: (u64, u64) = (21, 4);

/// The names of the library's functions, by address.
fn names(archive: &[u8], library: &Library) -> Vec<Option<String>> {
    let library = library.bytes();
    let functions = scan(&library).expect("a sound file").functions;
    let ranges: Vec<_> = functions.into_iter().map(|function| function.addresses).collect();
    let archive = Archive::read(archive).expect("a sound archive");
    let names = archive.names(&Code::read(&library).expect("a sound file"), &ranges);
    ranges.iter().map(|range| names.at(range.start).map(str::to_owned)).collect()
}

fn some(name: &str) -> Option<String> {
    Some(name.to_owned())
}

/// An archive of these members.
fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for member in members {
        let (date, size) = (0, member.len());
        let name = "member.o/";
        archive.extend(format!("{name:<16}{date:<12}0     0     100644  {size:<10}`\n").bytes());
        archive.extend(member);
        archive.resize(archive.len().next_multiple_of(2), b'\n');
    }
    archive
}

/// A library with the two functions, described by frames alone.
fn stripped() -> Library {
    Library::new(code()).frame(0, 48).frame(48, 48)
}

#[test]
fn debug_file_names_what_was_stripped() {
    let debug = Library::new(code())
        .function("one", 0, 48)
        .symbol("label", 4, 0, Kind::NoType)
        .build_id(&[1, 2])
        .debug_file()
        .bytes();
    let names = Names::read(&debug).expect("a debug file");
    assert_eq!((names.at(CODE), names.at(CODE + 48), names.len()), (Some("one"), None, 2));
    assert_eq!(dimmer_scan::build_id(&debug), Ok(Some(vec![1, 2])));
    assert!(Names::read(b"\x7fELF").is_err());
    let none = Library::new(code()).bytes();
    assert!(Names::read(&none).expect("a file without symbols").is_empty());
}

#[test]
fn link_to_the_debug_file_is_read_and_checked() {
    let link = |section: &[u8]| {
        let library = stripped().section(".gnu_debuglink", section.to_vec());
        debug_link(&library.bytes())
    };
    // The checksum of "123456789".
    let found = link(b"abc.debug\0\0\0\x26\x39\xf4\xcb").expect("a link").expect("one");
    assert_eq!(found.name, "abc.debug");
    assert!(found.is_to(b"123456789") && !found.is_to(b"12345678"));
    assert_eq!(debug_link(&stripped().bytes()), Ok(None));
    let damaged: [&[u8]; 5] =
        [b"", b"abc", b"abc\0\x26\x39\xf4", b"a/b\0\0\0\0\0", b"\0\0\0\0\0\0\0\0"];
    for damaged in damaged {
        assert!(link(damaged).is_err(), "{damaged:?}");
    }
}

/// `printf 'name name name name name name name name name name name name' | xz`
const PACKED: &[u8] = &[
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01,
    0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0xe0, 0x00, 0x3a, 0x00, 0x0b, 0x5d, 0x00, 0x37,
    0x18, 0x49, 0xfd, 0xf9, 0xe3, 0xf6, 0x5f, 0x3c, 0x40, 0x00, 0x00, 0x00, 0x06, 0x58, 0x14, 0xf7,
    0x56, 0xbd, 0x0e, 0xe1, 0x00, 0x01, 0x27, 0x3b, 0x6a, 0xee, 0x48, 0x4b, 0x1f, 0xb6, 0xf3, 0x7d,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a,
];

#[test]
fn packed_debug_file_is_unpacked() {
    let packed = |section: &[u8]| {
        let library = stripped().section(".gnu_debugdata", section.to_vec());
        embedded_debug_file(&library.bytes())
    };
    let unpacked = packed(PACKED).expect("sound").expect("one");
    assert_eq!(unpacked, ["name"; 12].join(" ").as_bytes());
    assert_eq!(embedded_debug_file(&stripped().bytes()), Ok(None));
    for length in 0..PACKED.len() {
        assert!(packed(&PACKED[..length]).is_err(), "{length} bytes");
        let mut flipped = PACKED.to_vec();
        flipped[length] ^= 0x10;
        // Some flips make no difference.
        let answer = packed(&flipped).unwrap_or_else(|_| Some(unpacked.clone()));
        assert_eq!(answer.as_ref(), Some(&unpacked), "byte {length} flipped");
    }
    let error = packed(GROWING).expect_err("much too long").to_string();
    assert!(error.ends_with("it becomes more than 32 times as long"), "{error}");
}

/// `head -c 1000000 /dev/zero | xz`
const GROWING: &[u8] = &[
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01,
    0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0xef, 0x42, 0x3f, 0x00, 0xd1, 0x5d, 0x00, 0x00,
    0x6f, 0xfd, 0xff, 0xff, 0xa3, 0xb7, 0xff, 0x47, 0x3e, 0x48, 0x15, 0x72, 0x39, 0x61, 0x51, 0xb8,
    0x92, 0x28, 0xe6, 0xa3, 0x86, 0x07, 0xf9, 0xee, 0xe4, 0x1e, 0x82, 0xd3, 0x2f, 0xc5, 0x3a, 0x3c,
    0x01, 0x4b, 0xb1, 0x7e, 0xc9, 0x8a, 0x8a, 0x4d, 0x2f, 0xa3, 0x0d, 0xd9, 0x7f, 0xa6, 0xe3, 0x8c,
    0x23, 0x11, 0x53, 0xe0, 0x59, 0x18, 0xc5, 0x75, 0x8a, 0xe2, 0x77, 0xf8, 0xb6, 0x94, 0x7f, 0x0c,
    0x6a, 0xc0, 0xde, 0x74, 0x49, 0x64, 0xe2, 0xe9, 0x5c, 0x53, 0xb2, 0x04, 0xd8, 0xf7, 0x44, 0x0c,
    0xab, 0x5f, 0x0d, 0x6d, 0x46, 0xe9, 0xe5, 0xc3, 0x76, 0x88, 0xb7, 0x96, 0x57, 0xac, 0xb6, 0x4d,
    0xe1, 0x69, 0x1d, 0x6f, 0xfb, 0x4b, 0x88, 0x10, 0x6c, 0x42, 0xcb, 0x88, 0x3f, 0x5c, 0x00, 0x8f,
    0xd0, 0x4e, 0xaf, 0x26, 0x28, 0x94, 0x71, 0x1f, 0x3d, 0x8f, 0x24, 0xe1, 0x70, 0x9e, 0xa7, 0x23,
    0x5f, 0xec, 0x28, 0xcb, 0x85, 0xd1, 0x95, 0x98, 0x8a, 0x7e, 0x2a, 0x91, 0xf2, 0x27, 0x75, 0xf7,
    0x19, 0xc0, 0x06, 0x98, 0x4d, 0x98, 0xfd, 0xd8, 0xaf, 0xd5, 0x90, 0x0f, 0xc4, 0x25, 0x53, 0xf8,
    0xf5, 0x91, 0x36, 0x31, 0x05, 0xa5, 0xb0, 0xee, 0x6f, 0xc1, 0x70, 0x4d, 0x47, 0x0c, 0xd1, 0x91,
    0x11, 0xaa, 0xad, 0x60, 0x1d, 0xba, 0xce, 0xb1, 0x27, 0x18, 0x5c, 0x59, 0x86, 0xe9, 0x66, 0x52,
    0x58, 0xbe, 0xe9, 0x76, 0xac, 0x59, 0xe4, 0xe5, 0x5b, 0x05, 0x08, 0xf9, 0x93, 0xc3, 0x3f, 0x36,
    0x00, 0x00, 0x00, 0x00, 0x32, 0xb3, 0x55, 0x97, 0xee, 0xd2, 0xe1, 0xe3, 0x00, 0x01, 0xed, 0x01,
    0xc0, 0x84, 0x3d, 0x00, 0xd5, 0xe0, 0x76, 0xae, 0xb1, 0xc4, 0x67, 0xfb, 0x02, 0x00, 0x00, 0x00,
    0x00, 0x04, 0x59, 0x5a,
];

#[test]
fn function_is_known_by_its_bytes_whatever_the_linker_fills_in() {
    let mut other = code();
    other[21..25].fill(0);
    let object = Library::new(other).function("one", 0, 48).function("two", 48, 48);
    let filled = archive(&[b"no object".to_vec(), object.object(&[CALL]).bytes()]);
    let found = names(&filled, &stripped());
    assert_eq!(found, [some("one"), some("two")]);
}

#[test]
fn function_with_other_bytes_is_another() {
    let mut other = code();
    other[21..25].fill(0);
    let object = || Library::new(other.clone()).function("one", 0, 48);
    assert_eq!(names(&archive(&[object().object(&[]).bytes()]), &stripped()), [None, None]);
    // Equally alike, but shorter by more than padding.
    let longer = Library::new([code(), vec![0x90; 80]].concat()).frame(0, 176);
    let found = names(&archive(&[object().object(&[CALL]).bytes()]), &longer);
    assert_eq!(found, [None]);
}

#[test]
fn label_of_no_type_lasts_until_the_next() {
    let object =
        Library::new(code()).symbol("one", 0, 0, Kind::NoType).symbol("two", 48, 0, Kind::NoType);
    let found = names(&archive(&[object.object(&[CALL]).bytes()]), &stripped());
    assert_eq!(found, [some("one"), some("two")]);
}

#[test]
fn ambiguous_names_are_none() {
    let object = |name: &str| Library::new(code()).function(name, 0, 48).object(&[CALL]).bytes();
    // Two names for one function.
    assert_eq!(names(&archive(&[object("one"), object("two")]), &stripped()), [None, None]);
    // The same name twice is one.
    let twice = archive(&[object("one"), object("one")]);
    assert_eq!(names(&twice, &stripped()), [some("one"), None]);
    // One name for two functions.
    let twice = Library::new(code()[..48].repeat(2)).frame(0, 48).frame(48, 48);
    assert_eq!(names(&archive(&[object("one")]), &twice), [None, None]);
}

#[test]
fn too_few_compared_bytes_are_no_proof() {
    let short = &code()[..31];
    let object = |size| Library::new(code()).function("one", 0, size).object(&[]).bytes();
    let library = Library::new(short.to_vec()).frame(0, 31);
    assert_eq!(names(&archive(&[object(31)]), &library), [None]);
    let library = Library::new(code()).frame(0, 32);
    assert_eq!(names(&archive(&[object(32)]), &library), [some("one")]);
}

#[test]
fn damaged_archives_are_answered() {
    let object = Library::new(code()).function("one", 0, 48).object(&[CALL]).bytes();
    let sound = archive(&[object.clone(), object]);
    assert!(Archive::read(b"INPUT(libone.so)").is_err());
    for at in 0..sound.len() {
        // It must end, with any result.
        let _ = Archive::read(&sound[..at]);
        for byte in [0, 0x7f, 0xff] {
            let mut damaged = sound.clone();
            damaged[at] = byte;
            if let Ok(archive) = Archive::read(&damaged) {
                let library = stripped().bytes();
                let code = Code::read(&library).expect("a sound file");
                let _ = archive.names(&code, &[CODE..CODE + 48, CODE + 48..CODE + 96]);
            }
        }
    }
}

#[test]
fn name_of_the_library_is_told_without_a_scan() {
    assert_eq!(
        soname(&stripped().soname("libone.so.1").bytes()),
        Ok(Some("libone.so.1".to_owned()))
    );
    assert_eq!(soname(&stripped().bytes()), Ok(None));
}
