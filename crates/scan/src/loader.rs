//! Which loader starts a program, and whether that loader can preload a library of this kind.
//!
//! Reads some hundred bytes at a time, allocates nothing and cannot fail: a program calls this in a
//! process that it has just made, for the file that it is about to execute there. A file that
//! cannot be read is [`Start::Unknown`].
//!
//! Sources: the System V ABI with its x86-64 supplement; for the hash table, "How To Write Shared
//! Libraries" (Drepper); for scripts, Linux `fs/binfmt_script.c`.

/// How the kernel starts a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// By glibc's loader for x86-64, which can preload libraries.
    Glibc,
    /// By itself, with no loader. It preloads no library, and a request to preload one does no
    /// harm.
    Static,
    /// In a way that rules out preloading a library of this kind.
    Refused(Refused),
    /// As a script, by the interpreter at this path.
    Script(Name),
    /// It is neither a program nor a script, or cannot be read.
    Unknown,
}

/// Why a library for glibc's x86-64 programs must not be preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "what is not large lies elsewhere, which is to allocate"
)]
pub enum Refused {
    /// The program has 32 bits, or is for another kind of processor.
    Machine,
    /// The program has a loader other than glibc's: its path.
    Loader(Name),
    /// The program has the runtime of a sanitizer, which must be the first library and finds leaks
    /// and races in others.
    Sanitizer(&'static str),
}

/// A path, cut to its first 255 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; HEAD],
    length: usize,
}

/// How many bytes of a file the kernel reads first (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;

impl Name {
    /// The path `text`, cut to its first 255 bytes.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        let mut name = Self { bytes: [0; HEAD], length: text.len().min(HEAD - 1) };
        let length = name.length;
        name.bytes[..length].copy_from_slice(&text[..length]);
        name
    }

    /// The path, without a terminating zero.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.bytes()))
    }
}

/// How to recognize the runtime of a sanitizer.
struct Sanitizer {
    name: &'static str,
    /// How the names of its libraries start: gcc's and clang's.
    libraries: [&'static [u8]; 2],
    /// A symbol that a program defines if it contains the runtime.
    symbol: &'static [u8],
}

const SANITIZERS: [Sanitizer; 5] = [
    Sanitizer {
        name: "AddressSanitizer",
        libraries: [b"libasan.so", b"libclang_rt.asan"],
        symbol: b"__asan_init",
    },
    Sanitizer {
        name: "ThreadSanitizer",
        libraries: [b"libtsan.so", b"libclang_rt.tsan"],
        symbol: b"__tsan_init",
    },
    Sanitizer {
        name: "MemorySanitizer",
        libraries: [b"libmsan.so", b"libclang_rt.msan"],
        symbol: b"__msan_init",
    },
    Sanitizer {
        name: "HWAddressSanitizer",
        libraries: [b"libhwasan.so", b"libclang_rt.hwasan"],
        symbol: b"__hwasan_init",
    },
    Sanitizer {
        name: "LeakSanitizer",
        libraries: [b"liblsan.so", b"libclang_rt.lsan"],
        symbol: b"__lsan_init",
    },
];

/// Names of glibc's loader for x86-64, the second by the Linux Standard Base.
const LOADERS: [&[u8]; 2] = [b"ld-linux-x86-64.so", b"ld-lsb-x86-64.so"];

const CLASS_64: u8 = 2;
const X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PROGRAM_HEADER: usize = 56;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DYNAMIC: usize = 16;

/// Limits above what any program has. A file that claims more is not followed further.
const MOST_HEADERS: u64 = 1024;
const MOST_ENTRIES: u64 = 8192;
const MOST_STEPS: u64 = 4096;

/// How a file is started. `read` copies its bytes from an offset on, and returns how many it
/// copied.
pub fn start(read: impl Fn(u64, &mut [u8]) -> usize) -> Start {
    let mut head = [0; HEAD];
    let length = read(0, &mut head).min(HEAD);
    let head = &head[..length];
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(line).map_or(Start::Unknown, Start::Script);
    }
    if !head.starts_with(b"\x7fELF") || length < 64 {
        return Start::Unknown;
    }
    if head[4] != CLASS_64 || u16_at(head, 18) != X86_64 {
        return Start::Refused(Refused::Machine);
    }
    let file = File { read: &read, headers: u64_at(head, 32), count: u64::from(u16_at(head, 56)) };
    if usize::from(u16_at(head, 54)) != PROGRAM_HEADER {
        return Start::Unknown;
    }
    let Some(interpreter) = file.header(PT_INTERP) else { return Start::Static };
    // The end of the path has the file's name.
    let before = interpreter.size.saturating_sub(HEAD as u64 - 1);
    let mut path = [0; HEAD - 1];
    let wanted = usize::try_from(interpreter.size - before).unwrap_or(0);
    let length = read(interpreter.offset.saturating_add(before), &mut path[..wanted]).min(wanted);
    let path = until(&path[..length], |byte| byte == 0);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if !LOADERS.iter().any(|loader| name.starts_with(loader)) {
        return Start::Refused(Refused::Loader(Name::new(path)));
    }
    match file.sanitizer() {
        Some(name) => Start::Refused(Refused::Sanitizer(name)),
        None => Start::Glibc,
    }
}

/// The interpreter that a script's first line names, after `#!`.
fn script(line: &[u8]) -> Option<Name> {
    let blank = |byte: u8| matches!(byte, b' ' | b'\t');
    let start = line.iter().position(|byte| !blank(*byte))?;
    let name = until(&line[start..], |byte| blank(byte) || matches!(byte, b'\n' | 0));
    (!name.is_empty()).then(|| Name::new(name))
}

fn until(bytes: &[u8], ends: impl Fn(u8) -> bool) -> &[u8] {
    let length = bytes.iter().position(|byte| ends(*byte)).unwrap_or(bytes.len());
    &bytes[..length]
}

struct File<'a, R> {
    read: &'a R,
    headers: u64,
    count: u64,
}

/// The fields of a program header.
#[derive(Clone, Copy)]
struct Header {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

impl<R: Fn(u64, &mut [u8]) -> usize> File<'_, R> {
    fn headers(&self) -> impl Iterator<Item = Header> + '_ {
        (0..self.count.min(MOST_HEADERS)).map_while(|number| {
            let bytes: [u8; PROGRAM_HEADER] =
                self.bytes(self.headers.checked_add(number * PROGRAM_HEADER as u64)?)?;
            Some(Header {
                kind: u32_at(&bytes, 0),
                offset: u64_at(&bytes, 8),
                address: u64_at(&bytes, 16),
                size: u64_at(&bytes, 32),
            })
        })
    }

    fn header(&self, kind: u32) -> Option<Header> {
        self.headers().find(|header| header.kind == kind)
    }

    /// The file offset of an address.
    fn offset(&self, address: u64) -> Option<u64> {
        let mut loaded = self.headers().filter(|header| header.kind == PT_LOAD);
        loaded.find_map(|header| {
            let within = address.checked_sub(header.address)?;
            if within < header.size { header.offset.checked_add(within) } else { None }
        })
    }

    fn bytes<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        ((self.read)(offset, &mut bytes) == N).then_some(bytes)
    }

    fn word(&self, offset: u64) -> Option<u32> {
        self.bytes(offset).map(u32::from_le_bytes)
    }

    /// Entries of the dynamic section: tags and values.
    fn dynamic(&self, section: Header) -> impl Iterator<Item = (u64, u64)> + '_ {
        let entries = (section.size / DYNAMIC as u64).min(MOST_ENTRIES);
        let entry = move |number: u64| {
            let bytes: [u8; DYNAMIC] =
                self.bytes(section.offset.checked_add(number * DYNAMIC as u64)?)?;
            Some((u64_at(&bytes, 0), u64_at(&bytes, 8)))
        };
        (0..entries).map_while(entry).take_while(|(tag, _)| *tag != 0)
    }

    /// The sanitizer whose runtime the file needs or contains.
    fn sanitizer(&self) -> Option<&'static str> {
        let section = self.header(PT_DYNAMIC)?;
        let (mut strings, mut symbols, mut hash) = (None, None, None);
        for (tag, value) in self.dynamic(section) {
            match tag {
                DT_STRTAB => strings = self.offset(value),
                DT_SYMTAB => symbols = self.offset(value),
                DT_GNU_HASH => hash = self.offset(value),
                _ => {}
            }
        }
        let strings = strings?;
        let needed = self.dynamic(section).filter(|(tag, _)| *tag == DT_NEEDED);
        for (_, name) in needed {
            let mut start = [0; 24];
            (self.read)(strings.checked_add(name)?, &mut start);
            let of = |one: &&Sanitizer| one.libraries.iter().any(|name| start.starts_with(name));
            if let Some(sanitizer) = SANITIZERS.iter().find(of) {
                return Some(sanitizer.name);
            }
        }
        let (symbols, hash) = (symbols?, hash?);
        let defines =
            |one: &&Sanitizer| self.defines(one.symbol, strings, symbols, hash).unwrap_or(false);
        SANITIZERS.iter().find(defines).map(|sanitizer| sanitizer.name)
    }

    /// Whether a symbol is in the hash table, which holds the symbols that the file defines.
    fn defines(&self, name: &[u8], strings: u64, symbols: u64, table: u64) -> Option<bool> {
        let hash = name
            .iter()
            .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        let [buckets, first, words] =
            [0, 4, 8].map(|at| table.checked_add(at).and_then(|at| self.word(at)));
        let (buckets, first, words) = (u64::from(buckets?), u64::from(first?), u64::from(words?));
        let buckets_at = table.checked_add(16)?.checked_add(words.checked_mul(8)?)?;
        let bucket = u64::from(hash).checked_rem(buckets)?;
        let chain = u64::from(self.word(buckets_at.checked_add(4 * bucket)?)?);
        if chain < first {
            return Some(false);
        }
        let chains_at = buckets_at.checked_add(4 * buckets)?;
        for symbol in chain..chain + MOST_STEPS {
            let entry = self.word(chains_at.checked_add(4 * (symbol - first))?)?;
            if entry | 1 == hash | 1 {
                let at = u64::from(self.word(symbols.checked_add(24 * symbol)?)?);
                let mut found = [0; 16];
                (self.read)(strings.checked_add(at)?, &mut found);
                if found.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0)) {
                    return Some(true);
                }
            }
            if entry & 1 == 1 {
                return Some(false);
            }
        }
        None
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        array.copy_from_slice(found);
    }
    array
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}
