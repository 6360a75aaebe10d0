//! A client of the policy server that lies: it writes random values wherever clients may write,
//! until it is killed.
//!
//! ```text
//! cargo run --example liar -- /run/dimmer/socket
//! ```

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use dimmer_protocol::{Hello, Mapped, SITES, Sums, Table, Welcome};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args().nth(1).ok_or("usage: liar SOCKET")?;
    let connection = dimmer_protocol::connect(Path::new(&socket))?;
    let hello = Hello::Serve { name: "liar".to_owned() };
    dimmer_protocol::send(connection.as_fd(), &hello.to_bytes(), &[])?;
    let table: Mapped<Table> = loop {
        let mut bytes = [0; Welcome::BYTES];
        match dimmer_protocol::receive(&connection, &mut bytes)? {
            Some((_, [_, Some(table)])) => break Mapped::new(table.as_fd())?,
            Some(_) => return Err("the server refuses it".into()),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let mut chance = fastrand::Rng::with_seed(1);
    loop {
        for _ in 0..100 {
            table.add(&[chance.u8(..), b'x'], chance.u32(..));
            let mut any = || chance.u64(..) >> chance.u8(..64);
            let sums = Sums {
                calls: any(),
                stayed: any(),
                stayed_ticks: any(),
                moved: any(),
                moved_ticks: any(),
                clocks: any(),
                before_ticks: any(),
                after_ticks: any(),
            };
            table.head.client.add_done(any());
            table.sites[chance.usize(..SITES)].set(&sums);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
