//! Counts of the requests that a driver makes of its provider.

use nodewright_driver::ProviderRequests;

use super::v1;

/// The maximum number of services, and the maximum length of the name of each, in bytes. Each is a label of metrics.
const SERVICES: usize = 64;
const NAME: usize = 63;
/// The largest number of requests: what a sample of Prometheus has exactly. Sums of twelve do not overflow.
const MOST: u64 = 1 << 53;

/// The message.
pub fn encode_requests(all: Vec<ProviderRequests>) -> v1::GetProviderRequestsResponse {
    let encode = |of: ProviderRequests| v1::ProviderRequests {
        service: of.service,
        made: of.made,
        failed: of.failed,
        succeeded: of.succeeded.to_vec(),
        seconds: of.seconds,
    };
    v1::GetProviderRequestsResponse { services: all.into_iter().map(encode).collect() }
}

/// Checks a message and decodes it: all of it or nothing. The error is what is wrong.
pub fn decode_requests(message: v1::GetProviderRequestsResponse) -> Result<Vec<ProviderRequests>, &'static str> {
    if message.services.len() > SERVICES {
        return Err("more than 64 services");
    }
    let mut all = message.services.into_iter().map(decode).collect::<Result<Vec<_>, _>>()?;
    all.sort_by(|a, b| a.service.cmp(&b.service));
    let has_two_of_a_name = all.windows(2).any(|pair| pair[0].service == pair[1].service);
    if has_two_of_a_name { Err("two services of one name") } else { Ok(all) }
}

fn decode(of: v1::ProviderRequests) -> Result<ProviderRequests, &'static str> {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    if !(1..=NAME).contains(&of.service.len()) || !of.service.bytes().all(is_allowed) {
        return Err("a service that is not 1 to 63 of a to z, 0 to 9 and _");
    }
    if !of.seconds.is_finite() || of.seconds < 0.0 {
        return Err("seconds that are no duration");
    }
    if of.succeeded.iter().chain([&of.made, &of.failed]).any(|count| *count > MOST) {
        return Err("more than 2^53 requests");
    }
    let succeeded = if of.succeeded.is_empty() { vec![0; 12] } else { of.succeeded };
    let succeeded = succeeded.try_into().map_err(|_| "other than twelve counts of durations")?;
    Ok(ProviderRequests { service: of.service, made: of.made, failed: of.failed, succeeded, seconds: of.seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(service: &str) -> ProviderRequests {
        let succeeded = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, MOST];
        ProviderRequests { service: service.to_owned(), made: 4, failed: 3, succeeded, seconds: 1.5 }
    }

    #[test]
    fn counts_arrive_as_they_were() {
        let all = vec![requests("instance_create"), requests("instance_terminate")];
        assert_eq!(decode_requests(encode_requests(all.clone())), Ok(all.clone()));
        let mut message = encode_requests(all);
        message.services[0].succeeded.clear();
        assert_eq!(decode_requests(message).map(|all| all[0].succeeded), Ok([0; 12]), "durations are not counted");
    }

    #[test]
    fn counts_that_would_be_no_metrics_are_refused() {
        type Change = fn(&mut v1::GetProviderRequestsResponse);
        let table: [(&str, Change); 10] = [
            ("64", |it| it.services = vec![it.services[0].clone(); 65]),
            ("one name", |it| it.services.push(it.services[0].clone())),
            ("a service", |it| it.services[0].service.clear()),
            ("a service", |it| it.services[0].service = "a\"".to_owned()),
            ("a service", |it| it.services[0].service = "a".repeat(64)),
            ("seconds", |it| it.services[0].seconds = f64::NAN),
            ("seconds", |it| it.services[0].seconds = -1.0),
            ("2^53", |it| it.services[0].succeeded[11] = MOST + 1),
            ("2^53", |it| it.services[0].failed = u64::MAX),
            ("twelve", |it| it.services[0].succeeded.truncate(11)),
        ];
        for (what, change) in table {
            let mut message = encode_requests(vec![requests("a")]);
            change(&mut message);
            assert!(decode_requests(message).unwrap_err().contains(what), "{what}");
        }
    }
}
