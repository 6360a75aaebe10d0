//! `dimmer bench` with ways that do not work.

use crate::{dimmer, stderr, stdout, victims};

#[test]
fn a_way_that_dimmer_refuses_is_no_result() {
    let directory = tempfile::tempdir().unwrap();
    victims::library();
    let options = ["bench", "program", "--rounds", "3", "--boost=no-such-strategy", "--", "true"];
    let output = dimmer(directory.path(), &options);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    let said = stderr(&output);
    assert!(said.contains("round 1, boost: Dimmer failed (status 125)"), "{said}");
    assert!(said.contains(" run --boost=no-such-strategy -- ..."), "{said}");
}
