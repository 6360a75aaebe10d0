//! Tests of the simulator from outside: against a second simulator that was written from the
//! documents alone ([`reference`]), and by properties that any simulator of such processors has.

mod assumptions;
mod differential;
mod drawn;
mod oracle;
mod properties;
mod reference;
mod waits;
