//! The server of `hotel.Reservation`.

use starling::{Request, Status};

use crate::api::hotel::{Reservation, ReservationRequest, ReservationResultMut, ReservationServer};

/// Confirms the hotels that it is asked for.
#[derive(Debug)]
pub struct Hotel;

/// The service, which a server can add.
pub fn server() -> ReservationServer<Hotel> {
    ReservationServer::new(Hotel)
}

impl Reservation for Hotel {
    fn make(
        &self,
        request: Request<'_, ReservationRequest>,
        mut response: ReservationResultMut<'_>,
    ) -> Result<(), Status> {
        for hotel in request.message().hotel_id().iter() {
            response.hotel_id_mut().push(hotel);
        }
        Ok(())
    }
}
