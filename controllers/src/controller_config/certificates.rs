//! The certificates in a ControllerConfig, for its status: users see which ones nodes trust, and until when.

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use nodewright_api::machine_config::{ControllerCertificate, ControllerConfigSpec};
use x509_parser::{pem::Pem, prelude::X509Certificate, time::ASN1Time};

/// How many certificates are listed: a status is a part of an object of limited size.
const LISTED: usize = 500;

/// The certificates of all bundles, in their order. What is no certificate is left out.
pub(super) fn list(spec: &ControllerConfigSpec) -> Vec<ControllerCertificate> {
    let own = [
        ("KubeAPIServerServingCAData", &spec.kube_api_server_serving_ca_data),
        ("CloudProviderCAData", &spec.cloud_provider_ca_data),
        ("RootCAData", &spec.root_ca_data),
        ("AdditionalTrustBundle", &spec.additional_trust_bundle),
    ];
    let own = own.into_iter().filter_map(|(name, data)| Some((name, data.as_deref()?)));
    let registries = spec.image_registry_bundle_data.iter().chain(&spec.image_registry_bundle_user_data);
    let bundles = own.chain(registries.map(|bundle| (bundle.file.as_str(), bundle.data.as_str())));
    bundles.flat_map(|(name, data)| of_bundle(name, data)).take(LISTED).collect()
}

fn of_bundle(name: &str, data: &str) -> Vec<ControllerCertificate> {
    let Ok(text) = BASE64_STANDARD.decode(data) else { return vec![] };
    let read = |pem: Pem| Some(describe(name, &pem.parse_x509().ok()?));
    Pem::iter_from_buffer(&text).filter_map(Result::ok).filter_map(read).collect()
}

fn describe(bundle: &str, certificate: &X509Certificate<'_>) -> ControllerCertificate {
    let time = |time: ASN1Time| Timestamp::from_second(time.timestamp()).ok().map(|time| time.to_string());
    let validity = certificate.validity();
    ControllerCertificate {
        bundle_file: bundle.to_owned(),
        not_after: time(validity.not_after),
        not_before: time(validity.not_before),
        signer: certificate.issuer().to_string(),
        subject: certificate.subject().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use nodewright_api::machine_config::RegistryBundle;

    use super::*;

    #[test]
    fn each_certificate_of_each_bundle_is_listed() {
        let pem = rcgen::generate_simple_self_signed(["registry".to_owned()]).unwrap().cert.pem();
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let spec = ControllerConfigSpec {
            root_ca_data: Some(encoded(&format!(
                "# two\n{pem}{pem}-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n"
            ))),
            additional_trust_bundle: Some("no base64".to_owned()),
            image_registry_bundle_data: vec![RegistryBundle { file: "r.io..5000".to_owned(), data: encoded(&pem) }],
            ..ControllerConfigSpec::default()
        };
        let listed = list(&spec);
        let bundles: Vec<_> = listed.iter().map(|it| it.bundle_file.as_str()).collect();
        assert_eq!(bundles, ["RootCAData", "RootCAData", "r.io..5000"]);
        assert_eq!(listed[0].subject, "CN=rcgen self signed cert");
        assert_eq!(listed[0].signer, listed[0].subject);
        assert!(listed[0].not_before < listed[0].not_after && listed[0].not_after.as_ref().unwrap().ends_with('Z'));
        let many = ControllerConfigSpec { root_ca_data: Some(encoded(&pem.repeat(LISTED + 1))), ..spec };
        assert_eq!(list(&many).len(), LISTED);
    }
}
