from pams_mil.remix.drift import prior_drift as prior_drift
from pams_mil.remix.pairing import Pair as Pair
from pams_mil.remix.pairing import Pairing as Pairing
from pams_mil.remix.strategy import Mixed as Mixed
from pams_mil.remix.strategy import Remix as Remix
from pams_mil.remix.strategy import create_remix as create_remix
