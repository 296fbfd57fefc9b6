#![no_main]
//! See `decoders::journal`.

#[expect(dead_code, reason = "each target uses one of the functions")]
#[path = "../src/decoders.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::journal(bytes);
});
