//! The protocol between the policy server and its clients: a few packets over a socket, and shared
//! memory.
//!
//! A client connects, introduces itself ([`Hello`]), and receives two files of memory
//! ([`Welcome`]): the *lease page*, which all clients share and may only read, and a *table* of its
//! own. After that neither side sends anything:
//!
//! | what | written by | read by |
//! |---|---|---|
//! | [`LeasePage`]: until when decisions hold, which cores are dedicated | server | all clients |
//! | [`Table::decisions`]: one word per site | server | client, at every entry of a region |
//! | [`Table::sites`]: names, and statistics of the sites | client | server, when it decides |
//! | [`ByClient`]: number of sites, and the program's completed work | client | server |
//!
//! Paper 001 (§4.3) uses a queue under a lock for that, and a request and an answer for each
//! decision. Here neither side asks or waits: nothing that one side does, or fails to do, delays
//! the other. Statistics are sums that only grow, not records in a ring. A client therefore has
//! nothing to flood, and loses nothing if the server does not read. The amount that the server
//! reads grows with the number of sites, not of calls.
//!
//! A decision to move work holds until the lease on the lease page ends. The server renews the
//! lease. When a server has ended, clients therefore stop moving work within [`LEASE`]. This takes
//! no thread and no system call in the client. The server detects the end of a client by the
//! client's socket.
//!
//! **Do not trust anything in this memory.** Either side may write any values. A reader therefore
//! takes numbers as numbers, texts as bytes, and limits counts to the available room.

mod client;
mod clock;
mod clocks;
mod closing;
mod memory;
mod packet;
mod socket;
mod table;

pub use client::{AnswerError, Client, Memory, MemoryFiles};
pub use clock::{ticks, ticks_per_ns};
pub use clocks::{BELL, CLOCKS, Clocks, OnBoard, clocks_mark};
pub use closing::{Closer, Socket, refuse_files};
pub use memory::{Mapped, MemoryError, Owned, Reservation};
pub use packet::{Hello, PacketError, Welcome};
pub use socket::{
    Credentials, Files, SOCKET, candidates, connect, credentials, hear, inherit, is_all_received,
    listen, place, receive, send, variable,
};
pub use table::{
    ByClient, ByServer, DELEGATE, Head, LEASE, LEASE_CORES, LeasePage, MIGRATE, NAME_BYTES, SITES,
    STAY, Site, Sums, Table,
};

/// Changes with every change of the protocol. A client and a server of different versions do not
/// communicate: the client's work is not moved.
pub const VERSION: u32 = 2;
