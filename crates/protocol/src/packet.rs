//! The packets: one per direction, each of a fixed length.

use crate::VERSION;

/// "dimmerhi", the first bytes of a client's packet.
const HELLO: u64 = u64::from_le_bytes(*b"dimmerhi");
/// "dimmerok", the first bytes of the server's answer.
const WELCOME: u64 = u64::from_le_bytes(*b"dimmerok");

/// Maximum length of a program's name in a packet (bytes).
const NAME: usize = 32;

/// Length of magic number, version and purpose (bytes).
const PREFIX: usize = 16;

/// Why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// Its length or its first bytes are wrong.
    #[error("no packet of Dimmer's")]
    Foreign,
    /// It is of another version.
    #[error("speaks version {0}, this is version {VERSION}")]
    Version(u32),
    /// Its purpose is unknown.
    #[error(
        "asks for {0}; known are 0 (decisions), 1 (to watch), 2 (to record), 3 (cores) and 4 (clocks)"
    )]
    Purpose(u32),
}

/// The first packet of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Asks for decisions for the client's sites. Answered by a [`Welcome`] with two files: lease
    /// page and table.
    Serve {
        /// The program's name, for people to read. A received name has no control characters.
        name: String,
    },
    /// As [`Self::Serve`], for a program whose threads go to the dedicated cores of their own
    /// accord, for phases of many calls (`dimmer run --specialise`): asks for cores while it needs
    /// some.
    Ask {
        /// The program's name, for people to read. A received name has no control characters.
        name: String,
    },
    /// Has the server moderate the clocks that the program's threads request. Answered by a
    /// [`Welcome`] with one file, the board ([`crate::Clocks`]).
    Clocks {
        /// The program's name, for people to read. A received name has no control characters.
        name: String,
    },
    /// Asks for the current state. Each request is answered by a [`Welcome`] with a file of text,
    /// to be read to its end: the state of all that this user may see, in JSON.
    Watch,
    /// Like [`Self::Watch`], but answered once at the start and then at each step: the policy's
    /// input and its actions, one per line.
    Record,
}

impl Hello {
    /// Length of the packet (bytes).
    pub const BYTES: usize = PREFIX + NAME;

    /// The packet to send.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let (purpose, name) = match self {
            Self::Serve { name } => (0_u32, name.as_str()),
            Self::Watch => (1, ""),
            Self::Record => (2, ""),
            Self::Ask { name } => (3, name.as_str()),
            Self::Clocks { name } => (4, name.as_str()),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&HELLO.to_le_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..PREFIX].copy_from_slice(&purpose.to_le_bytes());
        let length = name.len().min(NAME);
        bytes[PREFIX..PREFIX + length].copy_from_slice(&name.as_bytes()[..length]);
        bytes
    }

    /// Parses a received packet.
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, PacketError> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| PacketError::Foreign)?;
        check(bytes, HELLO)?;
        match word(bytes, 12) {
            0 => Ok(Self::Serve { name: name(bytes) }),
            1 => Ok(Self::Watch),
            2 => Ok(Self::Record),
            3 => Ok(Self::Ask { name: name(bytes) }),
            4 => Ok(Self::Clocks { name: name(bytes) }),
            other => Err(PacketError::Purpose(other)),
        }
    }
}

/// The server's answer, apart from the files that come with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome;

impl Welcome {
    /// Length of the packet (bytes).
    pub const BYTES: usize = PREFIX;

    /// The packet to send.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&WELCOME.to_le_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes
    }

    /// Parses a received packet.
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, PacketError> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| PacketError::Foreign)?;
        check(bytes, WELCOME).map(|()| Self)
    }
}

fn check(bytes: &[u8], magic: u64) -> Result<(), PacketError> {
    if bytes[..8] != magic.to_le_bytes() {
        return Err(PacketError::Foreign);
    }
    match word(bytes, 8) {
        VERSION => Ok(()),
        other => Err(PacketError::Version(other)),
    }
}

/// The name in a client's packet. People read it on terminals.
fn name(bytes: &[u8; Hello::BYTES]) -> String {
    let name = &bytes[PREFIX..];
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    let letters = String::from_utf8_lossy(&name[..end]);
    letters.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_comes() {
        let name = || "nginx".to_owned();
        let named = [
            Hello::Serve { name: name() },
            Hello::Ask { name: name() },
            Hello::Clocks { name: name() },
        ];
        for hello in named.into_iter().chain([Hello::Watch, Hello::Record]) {
            assert_eq!(Hello::parse(&hello.to_bytes()), Ok(hello));
        }
        assert_eq!(Welcome::parse(&Welcome.to_bytes()), Ok(Welcome));
        let long = Hello::Serve { name: "n".repeat(50) };
        assert_eq!(Hello::parse(&long.to_bytes()), Ok(Hello::Serve { name: "n".repeat(32) }));
        let screen = Hello::Serve { name: "\x1b[2J\u{9b}".to_owned() };
        let clean = Hello::Serve { name: "\u{fffd}[2J\u{fffd}".to_owned() };
        assert_eq!(Hello::parse(&screen.to_bytes()), Ok(clean));
    }

    /// Programs with an older or newer library send and expect these bytes: other bytes need
    /// another [`VERSION`].
    #[test]
    fn version_2_has_these_bytes() {
        let padded = |text: &[u8]| -> Vec<u8> {
            text.iter().copied().chain(std::iter::repeat(0)).take(Hello::BYTES).collect()
        };
        let name = || "nginx".to_owned();
        for (hello, bytes) in [
            (Hello::Serve { name: name() }, &b"dimmerhi\x02\0\0\0\0\0\0\0nginx"[..]),
            (Hello::Watch, b"dimmerhi\x02\0\0\0\x01\0\0\0"),
            (Hello::Record, b"dimmerhi\x02\0\0\0\x02\0\0\0"),
            (Hello::Ask { name: name() }, b"dimmerhi\x02\0\0\0\x03\0\0\0nginx"),
        ] {
            assert_eq!(hello.to_bytes()[..], padded(bytes));
        }
        assert_eq!(&Welcome.to_bytes(), b"dimmerok\x02\0\0\0\0\0\0\0");
        assert_eq!((VERSION, Hello::BYTES), (2, 48));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut bytes = Hello::Watch.to_bytes();
        bytes[8] = 9;
        assert_eq!(Hello::parse(&bytes), Err(PacketError::Version(9)));
        let mut bytes = Hello::Watch.to_bytes();
        bytes[12] = 7;
        assert_eq!(Hello::parse(&bytes), Err(PacketError::Purpose(7)));
        assert_eq!(Hello::parse(&bytes[1..]), Err(PacketError::Foreign));
        assert_eq!(Welcome::parse(&bytes[..16]), Err(PacketError::Foreign));
    }

    #[test]
    fn any_bytes_give_an_answer() {
        let mut chance = fastrand::Rng::with_seed(3);
        let mut bytes = Hello::Watch.to_bytes();
        for _ in 0..10_000 {
            bytes[chance.usize(..Hello::BYTES)] = chance.u8(..);
            let _ = Hello::parse(&bytes[..chance.usize(..=Hello::BYTES)]);
            let _ = (Hello::parse(&bytes), Welcome::parse(&bytes[..Welcome::BYTES]));
        }
    }
}
