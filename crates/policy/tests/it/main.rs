//! What other implementations of the policy decide, compared with the policy.

mod kernel;
