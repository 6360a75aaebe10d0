//! Searches what is taken from papers' figures: `cargo run -p dimmer-validate --example take`, or
//! with rows to search for those alone. The values of some depend on each other's: each round goes
//! on with the values that the last one found, and the first one starts with the stored ones.
//! Prints the row, the value, its interval, and the row's figure with the value.

use std::error::Error;
use std::io::{self, Write as _};

use dimmer_validate::taken::{Found, TAKEN, stored};

const ROUNDS: u32 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let rows: Vec<String> = std::env::args().skip(1).collect();
    let mut values = stored();
    for round in 1..=ROUNDS {
        writeln!(io::stdout(), "round {round}")?;
        for taken in &TAKEN {
            if !rows.is_empty() && !rows.iter().any(|row| row == taken.row) {
                continue;
            }
            let row = taken.row;
            let Found { value, interval: [least, most], figure } = taken.search(&values)?;
            writeln!(io::stdout(), "{row}: {value:.5} [{least:.5}, {most:.5}], {figure:.4}")?;
            values.insert(row, value);
        }
    }
    Ok(())
}
