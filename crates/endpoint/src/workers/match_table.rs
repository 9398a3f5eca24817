//! Which datagrams a device may place on workers: those with one plain request.

use starling_io::MatchTable;
use starling_proto::PLAIN_REQUEST;

/// The key of a request is the id of its method, which its payload begins with.
pub(crate) const MATCH_TABLE: MatchTable = MatchTable {
    value: PLAIN_REQUEST.value,
    mask: PLAIN_REQUEST.mask,
    length_at: PLAIN_REQUEST.length_at,
    length_from: PLAIN_REQUEST.payload_at,
    key_at: PLAIN_REQUEST.payload_at,
};

#[cfg(test)]
mod tests {
    use super::*;
    use starling_call::header::method_of;

    #[test]
    fn the_key_of_a_request_is_its_method() {
        let payload = [1, 2, 3, 4, 5];
        let mut datagram = [&MATCH_TABLE.value[..], &[0; 8], &payload].concat();
        datagram[usize::from(MATCH_TABLE.length_at)] = payload.len() as u8;
        let method = method_of(&payload).expect("it is long enough");
        assert_eq!(MATCH_TABLE.key_of(&datagram), Some(method.0));
    }
}
