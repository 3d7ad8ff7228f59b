"""A slide in Leica's layout, whose picture starts far from the corner of level 0: OpenSlide states bounds for it."""

from __future__ import annotations

import numpy as np

NM = 1000  # one micron per pixel
_IMAGE = """<image name="{name}" uuid="{name}"><creationDate>2020-01-01T00:00:00.0Z</creationDate>
<device model="Leica SCN400" version="1"/>
<pixels sizeX="{width}" sizeY="{height}"><dimension sizeX="{width}" sizeY="{height}" r="0" ifd="{ifd}"/></pixels>
<view sizeX="{nm_x}" sizeY="{nm_y}" offsetX="{off_x}" offsetY="{off_y}"/>
<scanSettings><objectiveSettings><objective>{power}</objective></objectiveSettings><illuminationSettings>
<numericalAperture>0.4</numericalAperture><illuminationSource>brightfield</illuminationSource>
</illuminationSettings></scanSettings></image>"""


def write_leica(path, pixels, *, offset, size):
    """`pixels` [h, w, 3] at `offset` on a collection of `size`, both (x, y) in level-0 pixels; with a macro image."""
    import tifffile

    height, width = pixels.shape[:2]
    macro = np.full((256, 256, 3), (0, 200, 0), np.uint8)  # what must never be served
    images = [
        _IMAGE.format(name="macro", width=256, height=256, ifd=0, nm_x=size[0] * NM, nm_y=size[1] * NM, off_x=0,
                      off_y=0, power=0.6),
        _IMAGE.format(name="main", width=width, height=height, ifd=1, nm_x=width * NM, nm_y=height * NM,
                      off_x=offset[0] * NM, off_y=offset[1] * NM, power=20),
    ]  # fmt: skip
    text = (
        '<?xml version="1.0"?><scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01" uuid="a">'
        f'<collection name="c" uuid="b" sizeX="{size[0] * NM}" sizeY="{size[1] * NM}">{"".join(images)}'
        "</collection></scn>"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tifffile.TiffWriter(path, bigtiff=True) as file:
        for number, image in enumerate((macro, pixels)):
            description = text if number == 0 else None
            file.write(image, tile=(256, 256), photometric="rgb", compression="zlib", metadata=None,
                       description=description)  # fmt: skip
