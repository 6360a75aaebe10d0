//! Asks for clocks, one after the other, and prints what becomes of each; then keeps the last one
//! until the end of standard input.
//!
//! usage: `ask [turbo|base|slow|PERCENT|withdraw]...`
#![expect(clippy::print_stdout, reason = "it reports on standard output")]

use std::error::Error;
use std::io;

use dimmer_pace::{Request, back_end, request, withdraw};

fn main() -> Result<(), Box<dyn Error>> {
    println!("by {}", back_end().map_err(|missing| missing.why)?);
    for wanted in std::env::args().skip(1) {
        let asked = match wanted.as_str() {
            "turbo" => Some(Request::TURBO),
            "base" => Some(Request::BASE),
            "slow" => Some(Request::SLOW),
            "withdraw" => None,
            percent => Some(Request::percent(percent.parse()?).ok_or("accepted are 1 to 100")?),
        };
        match asked {
            Some(asked) => println!("{wanted}: {:?}", request(asked)),
            None => withdraw(),
        }
    }
    println!("waits");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
