//! What the policy server and its clients agree on: a few packets over a socket, and memory.
//!
//! A client connects, says who it is ([`Hello`]), and gets two files of memory ([`Welcome`]): the
//! *lease page*, which is the same for all clients and theirs to read alone, and a *table* of its
//! own. From then on nobody sends anything:
//!
//! | what | who writes | who reads |
//! |---|---|---|
//! | [`LeasePage`]: until when decisions hold, which cores are dedicated | server | all clients |
//! | [`Table::decisions`]: a word a site | server | client, at every entry of a region |
//! | [`Table::sites`]: names, and what the sites have seen | client | server, when it decides |
//! | [`Client`](ByClient): the number of sites, and what the program gets done | client | server |
//!
//! Paper 001 (§4.3) has a queue under a lock for that, and a request and an answer for each
//! decision. Here nobody asks and nobody waits: what one side does, or fails to do, holds up no
//! other. Statistics are sums that only grow, not records in a ring: a client that floods has
//! nothing to flood, one that nobody reads loses nothing, and what the server has to read goes by
//! the number of sites, not of calls.
//!
//! A decision to move work holds as long as the lease page's lease does, which the server renews.
//! So where a server has ended, work stays where it is within [`LEASE`], without a thread or a
//! system call of the client's. That a client has ended is told by its socket.
//!
//! **Nothing here is to be believed.** Either side may write what it likes: whoever reads takes
//! numbers as numbers, texts as bytes and counts as no more than there is room for.

mod clock;
mod closing;
mod memory;
mod packet;
mod socket;
mod table;

pub use clock::{ticks, ticks_per_ns};
pub use closing::{Closer, Socket, refuse_files};
pub use memory::{Mapped, MemoryError, Owned, Reservation};
pub use packet::{Hello, PacketError, Welcome};
pub use socket::{
    Credentials, Files, SOCKET, candidates, connect, credentials, hear, inherit, is_all_received,
    listen, place, receive, send, variable,
};
pub use table::{
    BORROW, ByClient, ByServer, Head, LEASE, LEASE_CORES, LeasePage, NAME_BYTES, OFFLOAD, SITES,
    STAY, Site, Sums, Table,
};

/// Changes with whatever is agreed on. Different versions do not talk to each other: the client's
/// work stays where it is.
pub const VERSION: u32 = 1;
